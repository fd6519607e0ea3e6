"""Compares two checkpoints: every tensor, and every other value.

``compare`` is the entry point. ``contents`` reads a checkpoint without its backend,
``facts`` decides which of its other values are state, and ``differences`` compares two
arrays or two other values. The package loads neither Keras nor a backend, and only
reads.
"""
