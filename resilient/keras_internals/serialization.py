"""Configs without TensorFlow where another backend trains.

Keras asks of each thing in a config whether it is TensorFlow's, and imports TensorFlow
to ask: seconds, hundreds of megabytes, the memory of a GPU. But what was never imported
has made nothing. So while a fit of ours runs, TensorFlow is available there only where
it is imported; the answers stay the same, in every thread.
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
    """Make configs without importing TensorFlow, until ``as_before``."""
    _module.tf = _WhereImported(_module.tf)


def as_before() -> None:
    """Make configs as Keras does."""
    _module.tf = _module.tf.tensorflow
