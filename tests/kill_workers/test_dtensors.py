"""Tensors that ranks of torch hold together, each its part."""

import os
from pathlib import Path

import pytest

if os.environ["KERAS_BACKEND"] != "torch":
    pytest.skip("DTensors are torch's", allow_module_level=True)

from support import gang


def test_dtensors_are_saved_by_their_owners_and_read_into_other_parts(tmp_path):
    """Put back from a snapshot, too; whole where a process holds all."""
    script = Path(__file__).with_name("dtensors.py")
    ended = gang.run(script, tmp_path).check()
    assert [text.rstrip().endswith("equal") for text in ended.outputs] == [True, True]
