"""Saves user-defined objects with ``state_dict`` and ``load_state_dict``."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from resilient.errors import NotSupportedError, message
from resilient.serialization import Encoded
from resilient.serialization.classes import NOTHING, Known
from resilient.serialization.json_values import NotEncodable, decode, encode


@runtime_checkable
class Stateful(Protocol):
    """An object that can save and load its state."""

    def state_dict(self) -> Any:
        """The state: plain values and arrays."""

    def load_state_dict(self, state: Any, /) -> Any:
        """Load what ``state_dict`` returned."""


def known_in(state: Callable[[], Any]) -> Known:
    """What an object's state may refer to: what it refers to now.

    Args:
        state: Returns the state; if it raises, it will raise again when needed.
    """
    known = Known()
    with contextlib.suppress(Exception):
        encode(state(), None, "value", known)
    return known.close()


def encoded_state(
    state: Any,
    arrays: dict[str, np.ndarray],
    name: str,
    whose: str,
    known: Known = NOTHING,
) -> Encoded:
    """A state as JSON.

    Args:
        state: The state of an object.
        arrays: Receives the larger arrays, under names that begin with ``name``.
        name: As ``encode`` takes it.
        whose: Names the object in errors.
        known: What it may refer to.

    Raises:
        NotSupportedError: Some part of it cannot be encoded.
    """
    try:
        return encode(state, arrays, name, known)
    except NotEncodable as error:
        raise NotSupportedError(
            f"The state of {whose} cannot be saved.",
            received=str(error),
            hint="Let state_dict() return plain values, lists, dicts, arrays and "
            "tensors, or put the class into keras.saving.get_custom_objects(), under "
            "any name.",
        ) from error


class StatefulObjects:
    """What was passed as ``stateful={"name": obj}``.

    Args:
        objects: Name to object.

    Raises:
        TypeError: A name is not a string, or an object lacks one of the two methods.
    """

    def __init__(self, objects: Mapping[str, Stateful] | None) -> None:
        if not isinstance(objects, Mapping | None):
            raise _wrong(type(objects).__name__)
        self._objects = dict(objects or {})
        for name, thing in self._objects.items():
            if not isinstance(name, str) or not isinstance(thing, Stateful):
                raise _wrong(f"{name!r}: {type(thing).__name__}")
        self._known = {
            n: known_in(each.state_dict) for n, each in self._objects.items()
        }

    def capture(self, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
        """Every object's state as JSON; larger arrays go into ``arrays``."""
        state = {}
        for index, (name, thing) in enumerate(self._objects.items()):
            place, whose = f"stateful.{index}", f"stateful object {name!r}"
            state[name] = encoded_state(
                thing.state_dict(), arrays, place, whose, self._known[name]
            )
        return state

    def differences(self, saved: Mapping[str, Any]) -> list[str]:
        """How the saved names differ from these, as one line, if they do."""
        if set(saved) == set(self._objects):
            return []
        theirs, ours = sorted(saved), sorted(self._objects)
        return [f"stateful: the checkpoint has {theirs}, this run has {ours}"]

    def restore(
        self, saved: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
    ) -> None:
        for name, thing in self._objects.items():
            thing.load_state_dict(decode(saved[name], arrays, self._known[name]))


def _wrong(received: str) -> TypeError:
    return TypeError(
        message(
            "`stateful` must map names to objects with state_dict() and "
            "load_state_dict().",
            received=received,
            hint='Pass a dict such as {"name": obj}.',
        )
    )
