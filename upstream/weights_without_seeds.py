"""Keras's ``.keras`` and ``.weights.h5`` files lack the state of seed generators.

The variable of ``Dropout`` that determines the next masks is not saved, so a loaded
model draws the first ones again.

Backends: tensorflow, jax, torch
"""

import os
import sys
import tempfile

import keras
import numpy as np

model = keras.Sequential([keras.Input((64,)), keras.layers.Dropout(0.5, seed=1)])
x = np.ones((1, 64), "float32")


def mask(of):
    return keras.ops.convert_to_numpy(of(x, training=True)).tobytes()


first = mask(model)
with tempfile.TemporaryDirectory() as directory:
    path = os.path.join(directory, "model.keras")
    model.save(path)
    loaded = keras.models.load_model(path)

second = mask(model)
found = mask(loaded)
if found == second:
    sys.exit("gone: the loaded model continues where the saved one was")
assert found == first
print("shown: the loaded model draws the first mask again")
