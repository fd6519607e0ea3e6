"""Keras's ``BackupAndRestore(save_freq=n)`` saves the batch and never reads it.

A run that died in mid-epoch restarts that epoch with the weights from its middle, so
some batches are trained twice.

Backends: tensorflow, jax, torch
"""

import contextlib
import sys
import tempfile

import keras
import numpy as np


class Dies(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 5:
            raise KeyboardInterrupt


def make_model():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


x = y = np.zeros((8, 1), "float32")
with tempfile.TemporaryDirectory() as directory:
    backup = keras.callbacks.BackupAndRestore(directory, save_freq=4)
    with contextlib.suppress(KeyboardInterrupt):
        make_model().fit(x, y, batch_size=1, callbacks=[backup, Dies()], verbose=0)
    model = make_model()
    backup = keras.callbacks.BackupAndRestore(directory, save_freq=4)
    model.fit(x, y, batch_size=1, callbacks=[backup], verbose=0)

steps = int(model.optimizer.iterations)
if steps == 8:
    sys.exit("gone: an epoch of 8 batches took 8 steps after a restore, too")
print(f"shown: an epoch of 8 batches took {steps} steps, 4 of them for a second time")
