"""Keras silently loads a damaged ``.weights.h5`` file.

Backends: tensorflow, jax, torch
"""

import os
import sys
import tempfile

import keras

model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8)])
before = model.get_weights()[0]
with tempfile.TemporaryDirectory() as directory:
    path = os.path.join(directory, "model.weights.h5")
    model.save_weights(path)
    with open(path, "r+b") as file:
        content = file.read()
        place = content.index(before.tobytes()) + 3  # sign and exponent of a float
        file.seek(place)
        file.write(bytes([content[place] ^ 0b10]))
    try:
        model.load_weights(path)
    except Exception as error:
        sys.exit(f"gone: {error}")

changed = int((model.get_weights()[0] != before).sum())
if not changed:
    sys.exit("gone: the flipped bit did not matter")
print(f"shown: one flipped bit changed {changed} weight without an error")
