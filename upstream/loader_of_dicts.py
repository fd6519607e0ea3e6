"""Keras turns a dict batch of a torch ``DataLoader`` into the names of its keys.

On TensorFlow and JAX; on torch the batch arrives intact.

Backends: tensorflow, jax
Needs: torch
Shows with: keras<3.16
"""

import sys

import torch  # isort: skip  (before TensorFlow, or the process crashes)
import keras
import numpy as np

rows = [{"a": np.zeros(1, "float32"), "b": np.zeros(1, "float32")}] * 4
inputs = {"a": keras.Input((1,), name="a"), "b": keras.Input((1,), name="b")}
model = keras.Model(inputs, keras.layers.Add()(list(inputs.values())))
try:
    model.predict(torch.utils.data.DataLoader(rows, batch_size=2), verbose=0)
except Exception as error:
    said = str(error).strip().splitlines()[0]
    print(f"shown: {type(error).__name__}: {said}")
else:
    sys.exit("gone: the model got both inputs")
