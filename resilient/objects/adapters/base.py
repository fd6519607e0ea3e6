"""The interface of an object that a loop saves, and how its kind is found.

Kinds that belong to no library are here as well.
"""

import importlib
import sys
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from resilient.errors import NotSupportedError, message
from resilient.keras_internals import BACKEND
from resilient.serialization import JSON, rng
from resilient.serialization.classes import NOTHING
from resilient.serialization.state_dict import Stateful, known_in
from resilient.state.variables import Variable

# The order matters: on PyTorch, a Keras model is also a torch.nn.Module.
_LIBRARIES = ("keras", "tensorflow", "torch")  # the KINDS of ..._objects.py


class Kind:
    """One object. This base has no variables and no other state.

    Args:
        value: The object.

    Attributes:
        kind: Its name in messages.
        known: What its state may refer to.
    """

    kind: ClassVar[str] = "object"
    known = NOTHING

    def __init__(self, value: Any) -> None:
        self.value = value

    def variables(self) -> Iterable[Variable]:
        """Group, index in it, path and the variable, in a stable order."""
        return ()

    def parts(self) -> Iterable[tuple[str, Any]]:
        """Objects whose attributes training may change, with names for messages."""
        return ()

    def fingerprint(self) -> JSON | None:
        """Its configuration, as the script made it; None if unknown."""
        return None

    def facts(self) -> JSON:
        """Facts that a checkpoint must share, by name, which follows the object's."""
        return {}

    def state(self) -> Any:
        """The state outside variables: plain values and arrays."""
        return None

    def load(self, state: Any, tensors: Mapping[str, Any]) -> None:
        """Set what ``state`` returned.

        Args:
            state: The same.
            tensors: Every tensor of the checkpoint, by name.
        """

    def built(self, places: Mapping[int, str]) -> JSON:
        """How the variables were built, as entries for ``build``.

        Args:
            places: Id of a variable to its index among all variables.
        """
        return {}

    def build(self, saved: JSON, places: Mapping[str, Any]) -> None:
        """Build the variables that otherwise only a first step builds.

        Args:
            saved: The facts as ``class``, and what ``built`` returned.
            places: Index of a variable to the variable.
        """


class StatefulKind(Kind):
    """Anything with ``state_dict`` and ``load_state_dict``."""

    kind: ClassVar[str] = "stateful object"

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.known = known_in(self.state)

    def state(self) -> Any:
        return self.value.state_dict()

    def load(self, state: Any, tensors: Mapping[str, Any]) -> None:
        self.value.load_state_dict(state)


class NumberGeneratorKind(Kind):
    """A generator of random numbers of Python, NumPy or PyTorch."""

    kind: ClassVar[str] = "random generator"

    def facts(self) -> JSON:
        return {"": rng.kind(self.value)}

    def state(self) -> Any:
        return rng.state(self.value)

    def load(self, state: Any, tensors: Mapping[str, Any]) -> None:
        rng.set_state(self.value, state)


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


def require_backend(library: str, name: str, value: Any) -> None:
    """Raise if an object belongs to a library other than Keras's backend.

    Args:
        library: Its library, by Keras's name for the backend.
        name: The name under which it was passed.
        value: The object.

    Raises:
        NotSupportedError: It does.
    """
    if library == BACKEND:
        return
    cls = type(value)
    raise NotSupportedError(
        f"`{name}` cannot be saved while Keras runs on {BACKEND}.",
        received=f"{cls.__module__}.{cls.__qualname__}",
        hint=f"Set KERAS_BACKEND={library} before Keras is imported.",
    )
