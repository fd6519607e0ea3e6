"""Checkpoints to and from files of Keras and safetensors.

It writes and reads ``.keras``, ``.weights.h5`` and safetensors, reads what
``BackupAndRestore`` saves, and refuses files of another model. It trains nothing.
``cli`` imports it.
"""
