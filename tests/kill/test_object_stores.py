"""Trainings in an object store: killed, moved to new machines, with faults between."""

import random
from pathlib import Path

import numpy as np
import pytest
from support import object_store
from support.gang import run_alone
from support.object_store import BUCKET, KILL, RESET

pytestmark = pytest.mark.spread

SCRIPT = """
import json, os, sys, time
from pathlib import Path

os.environ |= json.loads(sys.argv.pop(1))
import keras, numpy as np, resilient
from support import fitting

address, near, out, victim = sys.argv[1:]
Path(victim).write_text(str(os.getpid()))

class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.05)  # or the last checkpoint would be the first to be uploaded

net = fitting.model()
where = {"local_dir": near, "upload": resilient.Upload(patience=20)}
history = fitting.fit(
    net, address, callbacks=[Slow()], save_freq=2, keep=2,
    **(where if "://" in address else {}),
)
losses = history.history["loss"]
np.savez(out, *net.get_weights(), *net.optimizer.variables, losses=losses)
"""


@pytest.fixture
def s3(tmp_path):
    with object_store.running(tmp_path) as store:
        yield store


def test_a_run_is_killed_on_one_machine_after_another(s3, tmp_path):
    """At some of their requests, with faults before; some keep their disk."""
    script, drawn = tmp_path / "train.py", random.Random(2)
    script.write_text(SCRIPT)

    def run(address, machine, name):
        out = tmp_path / f"{name}.npz"
        arguments = (s3.told, address, tmp_path / machine, out, s3.victim)
        status, told = run_alone(script, *arguments)
        return status, told, out

    status, told, expected = run(tmp_path / "plain", "", "expected")
    assert status == 0, told
    address, kills, machine = f"s3://{BUCKET}/run", 0, 0
    for number, at in enumerate((8, 13, 20)):
        s3.restart()

        def fault(count, request, at=at):
            if count == at:
                return KILL
            return drawn.choice([500, RESET]) if drawn.random() < 0.1 else None

        s3.fault = fault
        status, told, out = run(address, f"machine-{machine}", f"life-{number}")
        assert status in (-9, 0), told
        kills += status == -9
        machine += drawn.random() < 0.7
    assert kills
    s3.restart()
    status, told, out = run(address, "last", "last")
    assert status == 0, told
    with np.load(expected) as theirs, np.load(out) as ours:
        assert theirs.files == ours.files
        for name in theirs.files:
            np.testing.assert_array_equal(ours[name], theirs[name])
    left = [key for key in s3.objects() if key.endswith("/manifest.json")]
    assert 1 <= len(left) <= 2, left
    assert Path(tmp_path, "last").is_dir()
