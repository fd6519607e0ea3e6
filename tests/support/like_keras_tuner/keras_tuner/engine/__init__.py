"""Tuners and oracles."""

from keras_tuner.engine import base_tuner, oracle

__all__ = ["base_tuner", "oracle"]
