"""The ``resilient`` command: looks at checkpoints, converts them, restarts scripts.

It parses arguments and prints; what it does is in the layers below. It refuses to
train, and loads Keras for conversions only. Nothing imports it.
"""
