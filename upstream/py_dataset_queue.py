"""Keras's queue of a ``PyDataset`` yields some batches twice, and skips others.

With several workers, on JAX and PyTorch, the next epoch gets the batches that were made
ahead when an epoch ended, or when Keras peeked at a batch before the first one.

Backends: jax, torch
"""

import sys

import keras
import numpy as np


class Numbers(keras.utils.PyDataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return np.zeros((1, 1), "float32"), np.full((1, 1), index, "float32")


model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
model.compile("sgd", loss=lambda y, zero: keras.ops.mean(y + zero))
sums = [
    round(20 * mean)
    for mean in model.fit(
        Numbers(workers=2), epochs=5, shuffle=False, verbose=0
    ).history["loss"]
]
if sums == [190] * 5:
    sys.exit("gone: each epoch had the 20 batches once")
print(f"shown: the numbers of 20 batches add up to 190, those of the epochs to {sums}")
