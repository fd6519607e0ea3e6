"""A fit in a process of its own, which may be killed, and what it ended with."""

import os
from pathlib import Path

import keras
import numpy as np

from support import fitting
from support.gang import run_alone
from support.waited import wait_for_the_first_save


class _Kill(keras.callbacks.Callback):
    """Kills the process after a batch; for the third one it calls a function."""

    def __init__(self, at, third):
        super().__init__()
        self._at, self._third, self._seen = at, third, 0

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass

    def on_train_batch_end(self, batch, logs=None):
        self._seen += 1
        if self._seen == 3:
            self._third()
        if self._seen == self._at:
            os.kill(os.getpid(), 9)  # Windows names no SIGKILL


def train(directory, kill, out, third=lambda: None):
    """What a script does that ``ended`` runs."""
    wait_for_the_first_save()
    net = fitting.model()
    callbacks = [_Kill(int(kill), third)]
    history = fitting.fit(net, directory, callbacks=callbacks, save_freq=2, keep=2)
    losses = history.history["loss"]
    np.savez(out, *net.get_weights(), *net.optimizer.variables, losses=losses)


def ended(script, directory, kill=0):
    """Run a script that trains; what it printed, and its values unless it is killed."""
    out = Path(script).with_suffix(".npz")
    status, told = run_alone(script, directory, kill, out)
    assert status == (-9 if kill else 0), told
    return told, None if kill else dict(np.load(out))


def assert_same(got, expected):
    """Raise unless two fits ended with the same values, bit for bit."""
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        assert np.array_equal(got[name], value), name
