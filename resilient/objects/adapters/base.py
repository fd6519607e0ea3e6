"""The interface of an object that a loop saves."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from resilient.backends.base import Backend
from resilient.errors import NotSupportedError
from resilient.keras_internals import BACKEND
from resilient.serialization import JSON, Encoded
from resilient.state import variables
from resilient.state.variables import Leaf, Variable

if TYPE_CHECKING:
    from resilient.objects.training_setup import TrainingSetup


@dataclass(frozen=True)
class SavedObject:
    """A checkpoint's state of all objects.

    Attributes:
        objects: Name to what ``Kind.capture`` returned.
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
        immutable: Whether its variables are values, so that two may be the same object.
        schema: The type of what ``capture`` returns.
    """

    kind: ClassVar[str] = "object"
    immutable: ClassVar[bool] = False
    schema: ClassVar[Any] = Any

    def __init__(self, value: Any) -> None:
        self.value = value

    def strategy(self) -> Any:
        """The tf.distribute strategy under which it was created, if any."""
        return None

    def variables(self) -> Iterable[Variable]:
        """Group, index in it, path and the variable, in a stable order."""
        return ()

    def parts(self) -> Iterable[tuple[str, Any]]:
        """Objects whose attributes training may change, with names for messages."""
        return ()

    def setup(self) -> "TrainingSetup | None":
        """The setup of its own training steps; None if it has none."""
        return None

    def fingerprint(self) -> JSON | None:
        """Its configuration, as the script made it; None if unknown."""
        return None

    def capture(
        self, arrays: dict[str, Any], name: str, known: Mapping[int, str]
    ) -> Encoded:
        """Its state outside variables, as JSON.

        Args:
            arrays: Receives the larger arrays, under names that begin with ``name``.
            name: As ``encode`` takes it.
            known: Id of a variable to its index among all variables.
        """
        return None

    def build(self, saved: Encoded, known: Mapping[str, Any]) -> None:
        """Build the variables that otherwise only a first step builds.

        Args:
            saved: What ``capture`` returned.
            known: Index of a variable to the variable.
        """

    def differences(self, name: str, saved: Encoded) -> list[str]:
        """Why the captured state cannot be restored; empty if it can."""
        return []

    def assign(
        self,
        backend: Backend,
        layout: Sequence[Mapping[str, Any]],
        live: Sequence[Leaf],
        tensors: Mapping[str, Any],
    ) -> None:
        """Set the variables, ``live``, to those of an equal ``layout``."""
        variables.assign(backend, layout, live, tensors)

    def restore(self, saved: Encoded, arrays: Mapping[str, Any]) -> None:
        """Set what ``capture`` returned."""


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
