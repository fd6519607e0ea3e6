"""A fit on arrays imports what Keras's own does, whatever else is installed."""

import json
import subprocess
import sys

import pytest
from support import SUPPORT

# With TensorFlow as the backend it is imported anyway.
pytestmark = [pytest.mark.sources, pytest.mark.spread(over=["jax", "torch"])]

PROGRAM = SUPPORT / "fits_on_arrays.py"
OURS = {"msgspec", "resilient", "xxhash"}


def test_a_fit_on_arrays_imports_no_other_library(tmp_path, backend, child_environment):
    """Nor TensorFlow, which Keras imports where it is asked for a model's config.

    That comes after the fits: so a checkpoint tells the same, and resumes without a
    warning, whether TensorFlow is imported or not.
    """
    child = subprocess.run(
        [sys.executable, PROGRAM, tmp_path],
        env=child_environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert child.returncode == 0, child.stderr
    report = json.loads(child.stdout.splitlines()[-1])
    ours = OURS | ({"tensorstore"} if backend == "jax" else set())
    assert set(report["added"]) - ours == set()
    assert report["same"]
    assert report["later"]
