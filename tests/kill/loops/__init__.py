"""Training loops of users' own, killed and resumed: small, and of every kind."""

import keras

from . import keras_loops, shapes
from .registry import LOOPS, Loop

__all__ = ["LOOPS", "Loop", "keras_loops", "shapes"]

match keras.backend.backend():
    case "tensorflow":
        from . import tensorflow_loops as _own
    case "jax":
        from . import jax_loops as _own
    case "torch":
        from . import torch_loops as _own  # noqa: F401
