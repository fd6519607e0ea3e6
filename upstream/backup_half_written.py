"""Keras's ``BackupAndRestore`` overwrites its only backup.

A process killed during a save leaves half a file in place of a good one, and the next
process cannot start from it.

Backends: tensorflow, jax, torch
"""

import os
import signal
import sys
import tempfile

import keras
import numpy as np


class KilledInSecondSave(keras.layers.Dense):
    saves = 0

    def save_own_variables(self, store):
        self.saves += 1
        if self.saves == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        super().save_own_variables(store)


def train(layer):
    model = keras.Sequential([keras.Input((1,)), layer(1)])
    model.compile("sgd", "mse")
    x = y = np.ones((4, 1), "float32")
    backup = keras.callbacks.BackupAndRestore(directory)
    model.fit(x, y, epochs=2, callbacks=[backup], verbose=0)


with tempfile.TemporaryDirectory() as directory:
    child = os.fork()
    if not child:
        train(KilledInSecondSave)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    try:
        train(keras.layers.Dense)
    except Exception as error:
        print(f"shown: the first save is lost, too: {type(error).__name__}: {error}")
    else:
        sys.exit("gone: the backup of the first epoch was restored")
