"""Keras gives the first two batches of a Python generator again each time it iterates.

It draws two to see what there is, and puts them in front of what is left, for each
iterator anew: every evaluation begins with them.

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
    sys.exit("gone: each evaluation went on where the last one ended")
print(f"shown: means of the batches' numbers were {found}, not [0.5, 2.5, 4.5]")
