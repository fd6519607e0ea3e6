"""Training on a mounted file system that lacks abilities, killed and resumed."""

from pathlib import Path

import numpy as np
import pytest
from support import lacking
from support.gang import run_alone

from resilient.telemetry.events import read_events

pytestmark = pytest.mark.spread

SCRIPT = """
import os, signal, sys
import keras, numpy as np
from support import fitting
from support.waited import wait_for_the_first_save

directory, kill, out = sys.argv[1:]

class Kill(keras.callbacks.Callback):
    seen = 0

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass

    def on_train_batch_end(self, batch, logs=None):
        self.seen += 1
        if self.seen == int(kill):
            os.kill(os.getpid(), signal.SIGKILL)

wait_for_the_first_save()
net = fitting.model()
history = fitting.fit(net, directory, callbacks=[Kill()], save_freq=2, keep=2)
losses = history.history["loss"]
np.savez(out, *net.get_weights(), *net.optimizer.variables, losses=losses)
"""


@pytest.mark.parametrize("lacks", ["flock,fsyncdir,rename,link", "atomic"])
def test_a_run_on_a_mount_is_killed_and_resumed(tmp_path, lacks):
    """One that lacks a lot, and one that renames as s3fs does."""
    if why := lacking.why_not():
        pytest.skip(f"nothing can be mounted here: {why}")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)

    def ended(directory, kill, name):
        out = tmp_path / f"{name}.npz"
        status, told = run_alone(script, directory, kill, out)
        assert status == (-9 if kill else 0), told
        return told, dict(np.load(out)) if not kill else None

    expected = ended(tmp_path / "local", 0, "expected")[1]
    with lacking.mounted(tmp_path, *lacks.split(",")) as mount:
        for kill in (5, 7):
            told, _ = ended(mount / "run", kill, "killed")
            assert told.count("does not lock files") == ("flock" in lacks)
            assert told.count("does not sync directories") == ("fsyncdir" in lacks)
        told, got = ended(mount / "run", 0, "resumed")
        restored = [e for e in read_events(mount / "run") if e["event"] == "restored"]
        assert len(restored) == 2
        names = {Path(path).name for path in (mount / "run").iterdir()}
        assert not [name for name in names if "unfinished" in name or "tmp" in name]
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        assert np.array_equal(got[name], value), name
