"""Random generators, and objects with ``state_dict`` and ``load_state_dict``."""

from collections.abc import Mapping
from typing import Any, ClassVar, TypedDict

from resilient.objects.adapters.base import Kind
from resilient.serialization import Encoded, rng
from resilient.serialization.decoding import decode
from resilient.serialization.state_dict import Stateful, encoded_state, known_in

_Generator = TypedDict("_Generator", {"class": str, "state": Any})


def kind_of(name: str, value: Any) -> Kind | None:
    """The kind of a generator or of an object with the two methods; else None."""
    if rng.is_generator(value):
        return NumberGeneratorKind(value)
    return StatefulKind(value) if isinstance(value, Stateful) else None


class NumberGeneratorKind(Kind):
    """A generator of random numbers of Python, NumPy or PyTorch."""

    kind: ClassVar[str] = "random generator"
    schema: ClassVar[Any] = _Generator

    def capture(
        self, arrays: dict[str, Any], name: str, known: Mapping[int, str]
    ) -> Encoded:
        return {"class": rng.kind(self.value), "state": rng.state(self.value)}

    def differences(self, name: str, saved: Encoded) -> list[str]:
        live = rng.kind(self.value)
        if saved["class"] == live:
            return []
        return [f"{name}: the checkpoint has {saved['class']}, this run has {live}"]

    def restore(self, saved: Encoded, arrays: Mapping[str, Any]) -> None:
        rng.set_state(self.value, saved["state"])


class StatefulKind(Kind):
    """Anything with ``state_dict`` and ``load_state_dict``."""

    kind: ClassVar[str] = "stateful object"

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self._known = known_in(value.state_dict)

    def capture(
        self, arrays: dict[str, Any], name: str, known: Mapping[int, str]
    ) -> Encoded:
        state, whose = self.value.state_dict(), type(self.value).__name__
        return encoded_state(state, arrays, name, whose, self._known)

    def restore(self, saved: Encoded, arrays: Mapping[str, Any]) -> None:
        self.value.load_state_dict(decode(saved, arrays, self._known))
