"""The ``resilient`` command: looks at checkpoints, converts them, restarts scripts.

It prints, and nothing else does; it refuses to train, and loads Keras for conversions
only. Nothing imports it.
"""
