"""Keeps configs from importing TensorFlow while another backend trains.

Keras checks whether each object in a config is TensorFlow's, and imports TensorFlow to
do so, which costs seconds, hundreds of megabytes and a GPU's memory. But a library that
was never imported has created no objects. So while our fit runs, TensorFlow is
available there only if it is already imported; results are the same, in every thread.
"""

import sys
from typing import Any

from resilient.keras_internals.unknown import unknown_keras

try:
    from keras.src.saving import serialization_lib
except ImportError as error:
    raise unknown_keras(str(error)) from error

_module: Any = serialization_lib


class _WhereImported:
    """Stands for TensorFlow inside Keras's serialization."""

    def __init__(self, tensorflow: Any) -> None:
        self.tensorflow = tensorflow

    @property
    def available(self) -> bool:
        return "tensorflow" in sys.modules and bool(self.tensorflow.available)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tensorflow, name)


def without_importing_tensorflow() -> None:
    """Stop configs from importing TensorFlow, until ``as_before``."""
    _module.tf = _WhereImported(_module.tf)


def as_before() -> None:
    """Make configs as Keras does."""
    _module.tf = _module.tf.tensorflow
