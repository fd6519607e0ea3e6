"""Checkpoints to and from the files of other libraries.

It writes ``.keras``, ``.weights.h5`` and safetensors, reads those and what TensorFlow,
Orbax and PyTorch save, and refuses files of another model. It trains nothing. ``cli``
imports it.
"""
