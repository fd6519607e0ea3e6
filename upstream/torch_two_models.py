"""Keras trains two separate models in two torch processes that should train one.

``torch.distributed`` is initialised, but ``fit`` ignores it.

Backends: torch
Shows with: keras<3.16
"""

import os
import sys
import tempfile

import keras
import numpy as np
import torch

with tempfile.TemporaryDirectory() as directory:
    reading, writing = os.pipe()
    child = os.fork()
    rank = 1 if child else 0
    torch.distributed.init_process_group(
        "gloo", f"file://{directory}/meet", rank=rank, world_size=2
    )
    layer = keras.layers.Dense(1, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((1,)), layer])
    model.compile("sgd", "mse")
    x = np.ones((4, 1), "float32")
    model.fit(x, x * rank, verbose=0)
    weights = model.get_weights()[1]
    if not child:
        os.write(writing, weights.tobytes())
        os._exit(0)
    theirs = np.frombuffer(os.read(reading, weights.nbytes), weights.dtype)
    os.waitpid(child, 0)

if np.array_equal(weights, theirs):
    sys.exit("gone: both ranks have the same weights")
print(f"shown: the ranks' biases are {theirs} and {weights}")
