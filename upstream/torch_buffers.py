"""Keras models on torch do not list the buffers of the torch modules in their layers.

``model.named_buffers()`` is empty: the statistics of a wrapped ``BatchNorm`` are in
neither torch's buffers nor Keras's variables.

Backends: torch
"""

import sys

import keras
import torch

layer = keras.layers.TorchModuleWrapper(torch.nn.BatchNorm1d(2))
model = keras.Sequential([keras.Input((2,)), layer])
statistics = {buffer.data_ptr() for buffer in layer.module.buffers()}
listed = [*model.buffers(), *(variable.value for variable in model.variables)]
missing = statistics - {tensor.data_ptr() for tensor in listed}
if not missing:
    sys.exit("gone: the buffers are listed")
print(f"shown: {len(missing)} of {len(statistics)} buffers are not listed")
