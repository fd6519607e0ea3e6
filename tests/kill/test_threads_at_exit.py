"""A process whose fit was ended while threads make batches: it exits, and soon."""

import subprocess
import sys

import pytest

SCRIPT = """
import os, signal, sys, threading
sys.path[:0] = {paths!r}
from support import fitting
import keras, resilient

class Data(keras.utils.PyDataset):
    def __len__(self):
        return 50

    def __getitem__(self, index):
        if index == 7:
            threading.Event().wait(0.5)
        return fitting.data(4)

def end():
    if {how!r} == "raise":
        raise ValueError("mine")
    os.kill(os.getpid(), signal.SIGTERM)

given = fitting.arguments(x=Data(workers=2), shuffle=False, epochs=1)
del given["y"], given["batch_size"]
callbacks = [fitting.Do(end, 0, 3)]
net = fitting.model()
resilient.fit(net, checkpoint_dir={home!r}, callbacks=callbacks, **given)
"""


@pytest.mark.spread
@pytest.mark.parametrize(("how", "status"), [("raise", 1), ("stop", 143)])
def test_it_exits(how, status, tmp_path, child_environment):
    script = SCRIPT.format(paths=sys.path, how=how, home=str(tmp_path))
    command = [sys.executable, "-c", script]
    done = subprocess.run(
        command, env=child_environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == status, done.stderr[-3000:]
    assert ("ValueError: mine" in done.stderr) == (how == "raise")
