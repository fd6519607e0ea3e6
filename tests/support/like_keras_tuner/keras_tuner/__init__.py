"""A small KerasTuner: what it does with seeds, files and errors."""

from keras_tuner import engine, errors

__all__ = ["engine", "errors"]
