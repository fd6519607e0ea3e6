"""Finds the kind of an object. A library that is not loaded has no objects."""

import importlib
import sys
from collections.abc import Mapping
from typing import Any

from resilient.errors import message
from resilient.objects.adapters.base import (
    Kind,
    NumberGeneratorKind,
    StatefulKind,
    require_backend,
)
from resilient.serialization import rng
from resilient.serialization.state_dict import Stateful

# The order matters: on PyTorch, a Keras model is also a torch.nn.Module.
_LIBRARIES = ("keras", "tensorflow", "torch")  # the KINDS of ..._objects.py


def kind_of(name: str, value: Any) -> Kind:
    """How to save and restore an object.

    Args:
        name: The name under which it was passed.
        value: The object.

    Raises:
        TypeError: Its kind is unknown.
        NotSupportedError: It belongs to a backend other than Keras's.
    """
    if isinstance(value, Kind):
        return value
    for library in _LIBRARIES:
        if library in sys.modules:
            module = f"resilient.objects.adapters.{library}_objects"
            kind = find_kind(importlib.import_module(module).KINDS, value)
            if kind is not None:
                if library != "keras":
                    require_backend(library, name, value)
                return kind(value)
    if rng.is_generator(value):
        return NumberGeneratorKind(value)
    if isinstance(value, Stateful):
        return StatefulKind(value)
    cls = type(value)
    raise TypeError(
        message(
            f"`{name}` cannot be saved and restored: its type is not known.",
            received=f"{name} of type {cls.__module__}.{cls.__qualname__}",
            hint=(
                "Pass models, layers, optimizers, metrics, variables and random "
                "generators of Keras, TensorFlow, PyTorch or NumPy, or any object "
                "with state_dict() and load_state_dict(). Pass JAX arrays as "
                "`state`, and the data to `loop`."
            ),
        )
    )


def find_kind(kinds: Mapping[type, type[Kind]], value: Any) -> type[Kind] | None:
    """The kind of the first class that ``value`` is an instance of, if any."""
    return next((kind for cls, kind in kinds.items() if isinstance(value, cls)), None)
