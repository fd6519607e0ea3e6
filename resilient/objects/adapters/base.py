"""The interface of an object that a loop saves, and how its kind is found.

Kinds that belong to no library are here as well.
"""

import importlib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from resilient.errors import NotSupportedError, message
from resilient.keras_internals import BACKEND
from resilient.serialization import JSON, Encoded, rng
from resilient.serialization.decoding import decode
from resilient.serialization.state_dict import Stateful, encoded_state, known_in
from resilient.state.variables import Variable

# The order matters: on PyTorch, a Keras model is also a torch.nn.Module.
_LIBRARIES = ("keras", "tensorflow", "torch")  # the KINDS of ..._objects.py


@dataclass(frozen=True)
class SavedObjects:
    """A checkpoint's state of all objects.

    Attributes:
        objects: Name to what ``Objects.capture`` returned.
        layout: The variables, as ``Leaf.to_json`` describes them.
        tensors: Every tensor, by name.
    """

    objects: Mapping[str, Encoded]
    layout: list[dict[str, Any]]
    tensors: Mapping[str, Any]


class Kind:
    """One object. This base has no variables and no other state.

    Args:
        value: The object.

    Attributes:
        kind: Its name in messages.
    """

    kind: ClassVar[str] = "object"

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

    def facts(self) -> Any:
        """Facts that a checkpoint must share, as JSON: the class, the parts.

        Those in a dict are compared one by one, and their names follow the object's.
        """
        return None

    def capture(self, arrays: dict[str, Any], name: str) -> Encoded:
        """The state outside variables, as JSON.

        Args:
            arrays: Receives the larger arrays, under names that begin with ``name``.
            name: As ``encode`` takes it.
        """
        return None

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

    def restore(self, saved: Encoded, arrays: Mapping[str, Any]) -> None:
        """Set what ``capture`` returned.

        Args:
            saved: The state, as JSON.
            arrays: Every tensor of the checkpoint, by name.
        """


class StatefulKind(Kind):
    """Anything with ``state_dict`` and ``load_state_dict``."""

    kind: ClassVar[str] = "stateful object"

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self._known = known_in(self.state)

    def state(self) -> Any:
        """The state: plain values and arrays."""
        return self.value.state_dict()

    def load(self, state: Any) -> None:
        """Set what ``state`` returned."""
        self.value.load_state_dict(state)

    def capture(self, arrays: dict[str, Any], name: str) -> Encoded:
        whose = type(self.value).__name__
        return encoded_state(self.state(), arrays, name, whose, self._known)

    def restore(self, saved: Encoded, arrays: Mapping[str, Any]) -> None:
        self.load(decode(saved, arrays, self._known))


class NumberGeneratorKind(Kind):
    """A generator of random numbers of Python, NumPy or PyTorch."""

    kind: ClassVar[str] = "random generator"

    def facts(self) -> Any:
        return rng.kind(self.value)

    def capture(self, arrays: dict[str, Any], name: str) -> Encoded:
        return rng.state(self.value)

    def restore(self, saved: Encoded, arrays: Mapping[str, Any]) -> None:
        rng.set_state(self.value, saved)


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
