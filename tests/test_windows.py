"""What Windows does not have is not asked for, as far as another system can tell."""

import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest
from support.gang import run_alone

BEGIN = """
import importlib, os, pkgutil, sys
import keras, numpy as np
from keras.src import backend
from support import windows

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
from support import fitting
from support.waited import wait_for_the_first_save
import resilient
from resilient.storage.lock import DirectoryLock

directory, kill, out = sys.argv[1:]

class Kill(keras.callbacks.Callback):
    seen = 0

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass

    def on_train_batch_end(self, batch, logs=None):
        self.seen += 1
        if self.seen == 3:
            try:
                DirectoryLock(directory).acquire()
            except resilient.DirectoryInUseError as error:
                assert "This process is already" in str(error)
            else:
                raise AssertionError("not locked")
        if self.seen == int(kill):
            os.kill(os.getpid(), 9)

wait_for_the_first_save()
net = fitting.model()
history = fitting.fit(net, directory, callbacks=[Kill()], save_freq=2, keep=2)
losses = history.history["loss"]
np.savez(out, *net.get_weights(), *net.optimizer.variables, losses=losses)
"""
)
LIBRARIES = (  # that a backend's tests may be without
    *("tensorflow", "jax", "jaxlib", "torch", "grain", "orbax", "tensorstore"),
    *("optax", "flax", "tensorboard", "torchdata", "safetensors", "shtab", "scipy"),
)


@pytest.mark.spread
def test_every_module_is_imported_and_the_supervisor_says_that_it_cannot(tmp_path):
    script = tmp_path / "all.py"
    script.write_text(IMPORT_ALL)
    absent = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
    status, told = run_alone(script, ",".join(absent))
    assert status == 2, told
    assert "`resilient run` does not work on Windows" in told


@pytest.mark.spread
def test_a_run_is_killed_and_resumed(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(TRAIN)

    def ended(directory: Path, kill: int, name: str):
        out = tmp_path / f"{name}.npz"
        status, told = run_alone(script, directory, kill, out)
        assert status == (-9 if kill else 0), told
        return None if kill else dict(np.load(out))

    expected = ended(tmp_path / "whole", 0, "whole")
    ended(tmp_path / "run", 5, "killed")
    assert any("step-" in name for name in os.listdir(tmp_path / "run"))
    got = ended(tmp_path / "run", 0, "resumed")
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        assert np.array_equal(got[name], value), name
