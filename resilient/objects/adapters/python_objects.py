"""Random generators, and objects with ``state_dict`` and ``load_state_dict``."""

from collections.abc import Mapping
from typing import Any, ClassVar

from resilient.errors import NotSupportedError
from resilient.objects.adapters.base import Kind
from resilient.serialization import Encoded
from resilient.serialization.json_values import NotEncodable, decode, encode
from resilient.serialization.rng import is_generator, set_state, state
from resilient.serialization.state_dict import Stateful


def kind_of(name: str, value: Any) -> Kind | None:
    """The kind of a generator or of an object with the two methods; else None."""
    if is_generator(value):
        return NumberGeneratorKind(value)
    return StatefulKind(value) if isinstance(value, Stateful) else None


class NumberGeneratorKind(Kind):
    """A generator of random numbers of Python, NumPy or PyTorch."""

    kind: ClassVar[str] = "random generator"

    def capture(
        self, arrays: dict[str, Any], name: str, known: Mapping[int, str]
    ) -> Encoded:
        cls = type(getattr(self.value, "bit_generator", self.value)).__name__
        return {"class": cls, "state": encode(state(self.value), arrays, name)}

    def differences(self, name: str, saved: Encoded) -> list[str]:
        live = type(getattr(self.value, "bit_generator", self.value)).__name__
        if saved["class"] == live:
            return []
        return [f"{name}: the checkpoint has {saved['class']}, this run has {live}"]

    def restore(self, saved: Encoded, arrays: Mapping[str, Any]) -> None:
        set_state(self.value, decode(saved["state"], arrays))


class StatefulKind(Kind):
    """Anything with ``state_dict`` and ``load_state_dict``."""

    kind: ClassVar[str] = "stateful object"

    def capture(
        self, arrays: dict[str, Any], name: str, known: Mapping[int, str]
    ) -> Encoded:
        return encoded(self.value.state_dict(), arrays, name, type(self.value).__name__)

    def restore(self, saved: Encoded, arrays: Mapping[str, Any]) -> None:
        self.value.load_state_dict(decode(saved, arrays))


def encoded(value: Any, arrays: dict[str, Any], name: str, whose: str) -> Encoded:
    """A state as JSON. The error for a state that cannot be saved says whose it is."""
    try:
        return encode(value, arrays, name)
    except NotEncodable as error:
        raise NotSupportedError(
            f"The state of {whose} cannot be kept.",
            received=str(error),
            hint="Return plain values, lists, dicts, arrays or tensors.",
        ) from error
