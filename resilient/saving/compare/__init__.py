"""Compares two checkpoints: every tensor, and every value that is none.

``compare`` is what others call; ``contents`` reads a checkpoint without its backend,
``pairs`` finds what belongs together, ``distance`` tells how far apart two arrays are,
``values`` walks through what is no tensor, ``facts`` says which of it is state. It
loads neither Keras nor a backend, and changes nothing.
"""
