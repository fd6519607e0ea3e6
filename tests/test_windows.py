"""What Windows does not have is not asked for, as far as another system can tell."""

import importlib.util
import os

import pytest
from support.gang import run_alone
from support.killed_fit import assert_same, ended

BEGIN = """
import importlib, os, pkgutil, sys
import keras, numpy as np
from keras.src import backend
from support import windows

if keras.config.backend() == "torch":
    import torch.distributed.checkpoint  # by the name of the system, it asks for more
windows.take_away()
"""
IMPORT_ALL = (
    BEGIN
    + """
import resilient

absent = set(sys.argv[1].split(","))
for module in pkgutil.walk_packages(resilient.__path__, "resilient."):
    if any(part in module.name for part in ("startup", "__main__", "keras_3_")):
        continue
    try:
        importlib.import_module(module.name)
    except ImportError as error:
        top = (error.name or "").partition(".")[0]
        assert top in absent, (module.name, error)

import resilient.cli.main as main
sys.exit(main.main(["run", "--", "python", "train.py"]))
"""
)
TRAIN = (
    BEGIN
    + """
import resilient
from resilient.storage.lock import DirectoryLock
from support.killed_fit import train


def locked():
    try:
        DirectoryLock(sys.argv[1]).acquire()
    except resilient.DirectoryInUseError as error:
        assert "This process is already" in str(error)
    else:
        raise AssertionError("not locked")


train(*sys.argv[1:], locked)
"""
)
LIBRARIES = (  # that a backend's tests may be without
    *("tensorflow", "jax", "jaxlib", "torch", "grain", "orbax", "tensorstore"),
    *("optax", "flax", "tensorboard", "torchdata", "safetensors", "scipy"),
)


@pytest.mark.spread
def test_every_module_is_imported_and_the_supervisor_says_that_it_cannot(tmp_path):
    script = tmp_path / "all.py"
    script.write_text(IMPORT_ALL)
    absent = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
    status, told = run_alone(script, ",".join(absent))
    assert status == 2, told
    assert "This command does not work on Windows" in told


@pytest.mark.spread
def test_a_run_is_killed_and_resumed(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(TRAIN)

    _, expected = ended(script, tmp_path / "whole")
    ended(script, tmp_path / "run", 5)
    assert any("step-" in name for name in os.listdir(tmp_path / "run"))
    assert_same(ended(script, tmp_path / "run")[1], expected)
