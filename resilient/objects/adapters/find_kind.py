"""Finds the kind of an object. A library that is not loaded has no objects."""

import importlib
import sys
from typing import Any

from resilient.errors import message
from resilient.objects.adapters.base import Kind

# The order matters: on PyTorch, a Keras model is also a torch.nn.Module.
_MODULES = {
    "keras": "keras_objects",
    "tensorflow": "tensorflow_objects",
    "torch": "torch_objects",
}


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
    for library, module in _MODULES.items():
        if library in sys.modules:
            kinds = importlib.import_module(f"resilient.objects.adapters.{module}")
            found: Kind | None = kinds.kind_of(name, value)
            if found is not None:
                return found
    from resilient.objects.adapters import python_objects

    kind = python_objects.kind_of(name, value)
    if kind is None:
        raise _unknown(name, value)
    return kind


def _unknown(name: str, value: Any) -> TypeError:
    cls = type(value)
    return TypeError(
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
