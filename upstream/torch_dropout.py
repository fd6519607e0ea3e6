"""Keras's ``Dropout`` without a seed draws from torch's global generator.

On the other backends, and with a seed, it draws from its own variable, which is part of
the model's state. Here any other draw changes the masks.

Backends: torch
"""

import sys

import keras
import numpy as np
import torch

x = np.ones((1, 64), "float32")
masks = []
for others in (0, 1):
    torch.manual_seed(1)
    layer = keras.layers.Dropout(0.5)
    torch.rand(others)  # another user of the global generator
    masks.append(keras.ops.convert_to_numpy(layer(x, training=True)))
if np.array_equal(*masks):
    sys.exit("gone: the layer draws from its own generator")
print("shown: a number drawn elsewhere changed the mask")
