"""After a restore by Keras's ``BackupAndRestore``, every later ``fit`` skips epochs.

The restore sets ``model._initial_epoch`` and nothing resets it, so later calls skip as
many epochs even without the callback.

Backends: tensorflow, jax, torch
"""

import sys
import tempfile

import keras
import numpy as np

model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = y = np.zeros((4, 1), "float32")
with tempfile.TemporaryDirectory() as directory:
    for _ in range(2):  # the second one restores
        backup = keras.callbacks.BackupAndRestore(directory, delete_checkpoint=False)
        model.fit(x, y, epochs=3, callbacks=[backup], verbose=0)

trained = model.fit(x, y, epochs=5, verbose=0).epoch
if trained == [0, 1, 2, 3, 4]:
    sys.exit("gone: fit(epochs=5) trained five epochs")
print(f"shown: fit(epochs=5) without the callback trained the epochs {trained}")
