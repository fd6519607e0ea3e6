"""Keras repeats the first two batches of a Python generator in each iteration.

It draws two batches to inspect them, and puts them in front of the rest for every new
iterator, so each evaluation begins with them.

Backends: tensorflow, jax, torch
"""

import sys

import keras
import numpy as np

model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
model.compile("sgd", loss=lambda y, zero: keras.ops.mean(y + zero))
x = np.zeros((1, 1), "float32")


def batches():
    for number in range(100):
        yield x, np.full((1, 1), number, "float32")


found = model.fit(
    x, x, epochs=3, validation_data=batches(), validation_steps=2, verbose=0
).history["val_loss"]
if found == [0.5, 2.5, 4.5]:
    sys.exit("gone: each evaluation continued where the last one ended")
print(f"shown: the mean batch numbers were {found}, not [0.5, 2.5, 4.5]")
