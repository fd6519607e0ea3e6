"""Keras's ``load_weights`` silently restores nothing from Orbax if names differ.

Automatic names are numbered per process, so the same model built again has different
ones. But ``load_weights`` matches an ``OrbaxCheckpoint`` by name. (On all backends.)

Backends: jax
Needs: orbax.checkpoint, keras.callbacks.OrbaxCheckpoint
"""

import sys
import tempfile

import keras
import numpy as np


def make_model():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    return model


saved, model = make_model(), make_model()
x = y = np.ones((4, 2), "float32")
with tempfile.TemporaryDirectory() as directory:
    save = keras.callbacks.OrbaxCheckpoint(directory, save_freq="epoch")
    saved.fit(x, y, callbacks=[save], verbose=0)
    before = model.get_weights()[0]
    try:
        model.load_weights(directory)
    except Exception as error:
        sys.exit(f"gone: {error}")

if not np.array_equal(model.get_weights()[0], before):
    sys.exit("gone: the weights were restored")
print("shown: load_weights changed no weight")
