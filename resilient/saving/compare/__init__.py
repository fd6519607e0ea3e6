"""Compares two checkpoints: every tensor, and every other value.

``compare`` is the entry point. ``contents`` reads a checkpoint without its backend,
``pairs`` matches the variables, ``distance`` measures how far apart two arrays are,
``values`` walks through the other values, and ``facts`` decides which of them are
state. The package loads neither Keras nor a backend, and only reads.
"""
