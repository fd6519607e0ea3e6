"""State that a callback's attribute leads to, but that is not the attribute's value.

Each kind can say what changed since training began, and plan how to put it back into
the living object: nothing is replaced.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Protocol

import keras
import numpy as np

from resilient.objects import kinds
from resilient.objects.snapshot import Remembered
from resilient.objects.traversal import Action, Place, Walk
from resilient.serialization import Encoded
from resilient.serialization.json_values import NotEncodable, decode, encode


class StateHandler(Protocol):
    """Something with state of its own."""

    kind: ClassVar[str]
    owner: Any

    def capture(self, walk: Walk, place: Place) -> Encoded | None:
        """The changes since the beginning as JSON; None if there are none."""

    def plan(self, walk: Walk, saved: Encoded | None, place: Place) -> list[Action]:
        """What to do to be as captured; nothing is done before the actions run."""


class _AsOneValue:
    """State that can be read as one value and set from one."""

    def __init__(self, owner: Any, walk: Walk, place: Place, *, fresh: bool) -> None:
        self.owner = owner
        self._before = None if fresh else Remembered(self._read(walk), place.name)
        if self._before is not None and not self._before.known:
            walk.refuse(place, owner)

    def _read(self, walk: Walk) -> Any:
        raise NotImplementedError

    def _write(self, walk: Walk, value: Any) -> list[Action]:
        raise NotImplementedError

    def capture(self, walk: Walk, place: Place) -> Encoded | None:
        found: dict[str, np.ndarray] = {}
        try:
            value = self._read(walk)
            data = encode(value, found, place.name)
        except NotEncodable:
            walk.refuse(place, self.owner)
            return None
        if self._before is not None and self._before.is_now(data, found):
            return None
        return walk.keep(value, data, found, place)

    def plan(self, walk: Walk, saved: Encoded | None, place: Place) -> list[Action]:
        if saved is not None:
            return self._write(walk, decode(saved, walk.arrays))
        if self._before is None or not self._before.known:
            return []
        found: dict[str, np.ndarray] = {}
        if self._before.is_now(encode(self._read(walk), found, place.name), found):
            return []
        try:
            return self._write(walk, self._before.again())
        except LookupError:
            walk.problems.append(f"{place.path}: its first content was not kept")
            return []


class StateDict(_AsOneValue):
    """An object with ``state_dict`` and ``load_state_dict``."""

    kind: ClassVar[str] = "state_dict"

    def _read(self, walk: Walk) -> Any:
        return self.owner.state_dict()

    def _write(self, walk: Walk, value: Any) -> list[Action]:
        return [partial(self.owner.load_state_dict, value)]


class HeldVariables(_AsOneValue):
    """A metric, layer, optimizer or variable, except what the trained model saves."""

    kind: ClassVar[str] = "variables"

    def _mine(self, walk: Walk) -> list[Any]:
        return [v for v in kinds.variables(self.owner) if not walk.is_own(v)]

    def _read(self, walk: Walk) -> Any:
        # A copy: some backends lend their own memory, which training writes to.
        return [np.array(keras.ops.convert_to_numpy(v)) for v in self._mine(walk)]

    def _write(self, walk: Walk, value: Any) -> list[Action]:
        live = self._mine(walk)
        shapes = [tuple(variable.shape) for variable in live]
        if shapes != [array.shape for array in value]:
            walk.problems.append(
                f"{type(self.owner).__qualname__}: its variables have shapes {shapes}, "
                f"saved were {[array.shape for array in value]}"
            )
            return []
        return [partial(_assign, v, a) for v, a in zip(live, value, strict=True)]


def _assign(variable: Any, value: np.ndarray) -> None:
    assign: Callable[[Any], Any] = variable.assign
    assign(value)
