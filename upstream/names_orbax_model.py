"""Keras's ``load_model`` silently restores no weight of a ``Sequential`` from Orbax.

https://github.com/keras-team/keras/issues/23251: the variables of the new model have
different names from those that ``OrbaxCheckpoint`` saved. (On all backends.)

Backends: jax
Needs: orbax.checkpoint, keras.callbacks.OrbaxCheckpoint
Shows with: keras<3.16
"""

import sys
import tempfile

import keras
import numpy as np

model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
model.compile("sgd", "mse")
x = y = np.ones((4, 2), "float32")
with tempfile.TemporaryDirectory() as directory:
    save = keras.callbacks.OrbaxCheckpoint(directory, save_freq="epoch")
    model.fit(x, y, callbacks=[save], verbose=0)
    loaded = keras.models.load_model(directory)

if np.array_equal(loaded.get_weights()[0], model.get_weights()[0]):
    sys.exit("gone: the weights were restored")
print("shown: load_model returned a model whose weights were never trained")
