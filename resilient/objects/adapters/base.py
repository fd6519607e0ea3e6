"""What is common to the kinds of objects that a loop may be given."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from resilient.backends.base import Backend
from resilient.errors import NotSupportedError
from resilient.keras_internals import BACKEND
from resilient.serialization import Encoded
from resilient.state import variables
from resilient.state.variables import Leaf, Variable

if TYPE_CHECKING:
    from resilient.objects.makeup.makeup import Makeup


@dataclass(frozen=True)
class SavedObject:
    """What a checkpoint has of all objects.

    Attributes:
        objects: Name to what ``Kind.capture`` returned.
        layout: The variables, as ``Leaf.to_json`` tells them.
        tensors: Every tensor, by name.
    """

    objects: Mapping[str, Encoded]
    layout: list[dict[str, Any]]
    tensors: Mapping[str, Any]


class Kind:
    """One object; by itself it has no variables and nothing else.

    Args:
        value: The object.

    Attributes:
        kind: What it is, in messages.
        immutable: Whether its variables are values, which may be the same object twice.
    """

    kind: ClassVar[str] = "object"
    immutable: ClassVar[bool] = False

    def __init__(self, value: Any) -> None:
        self.value = value

    def strategy(self) -> Any:
        """That of tf.distribute which it was made under; None where it tells none."""
        return None

    def variables(self) -> Iterable[Variable]:
        """Group, index in it, path and the variable, in a stable order."""
        return ()

    def parts(self) -> Iterable[tuple[str, Any]]:
        """What may have attributes that training changes, with names for people."""
        return ()

    def makeup(self) -> "Makeup | None":
        """What it trains with in steps of its own; None if it makes none."""
        return None

    def capture(
        self, arrays: dict[str, Any], name: str, known: Mapping[int, str]
    ) -> Encoded:
        """What is in no variable, as JSON.

        Args:
            arrays: Receives the larger arrays, under names that begin with ``name``.
            name: As ``encode`` takes it.
            known: Identity of a variable to its place among all of them.
        """
        return None

    def build(self, saved: Encoded, known: Mapping[str, Any]) -> None:
        """Make the variables that are made in a first step only.

        Args:
            saved: What ``capture`` returned.
            known: Place of a variable to the variable.
        """

    def differences(self, name: str, saved: Encoded) -> list[str]:
        """Why what was captured cannot be restored; empty if it can."""
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
    """Raise where an object belongs to another library than the one Keras runs on.

    Args:
        library: Whose it is, as Keras calls the backend.
        name: What it was passed as.
        value: The object.

    Raises:
        NotSupportedError: It does.
    """
    if library == BACKEND:
        return
    cls = type(value)
    raise NotSupportedError(
        f"`{name}` cannot be saved where Keras runs on {BACKEND}.",
        received=f"{cls.__module__}.{cls.__qualname__}",
        hint=f"Set KERAS_BACKEND={library} before Keras is imported.",
    )
