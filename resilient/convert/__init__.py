"""Checkpoints to and from the files of other libraries.

It reads and writes what Keras, TensorFlow, Orbax, PyTorch and safetensors use, and
refuses what holds another model. It trains nothing. ``cli`` imports it.
"""
