"""Keras's ``BackupAndRestore`` deletes its backup when ``TerminateOnNaN`` stops.

https://github.com/keras-team/keras/issues/21771: training ends with ``on_train_end`` as
if it had finished, so there is nothing left to go back to.

Backends: tensorflow, jax, torch
"""

import os
import sys
import tempfile

import keras
import numpy as np


class TurnsBad(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2:
            self.model.set_weights([w * np.nan for w in self.model.get_weights()])


model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = y = np.ones((4, 1), "float32")
with tempfile.TemporaryDirectory() as directory:
    path = os.path.join(directory, "backup")
    callbacks = [
        keras.callbacks.BackupAndRestore(path),
        keras.callbacks.TerminateOnNaN(),
        TurnsBad(),
    ]
    trained = model.fit(x, y, epochs=5, callbacks=callbacks, verbose=0).epoch
    kept = os.path.exists(path)

assert len(trained) < 5
if kept:
    sys.exit("gone: the backup is still there")
print("shown: training stopped at a NaN, and the backup was deleted")
