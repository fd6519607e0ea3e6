"""What changed in an object since training began, and putting that back.

Only changes are kept: what the script configures anew (another patience, another file
name) is not overwritten. Restoring makes the object what it was when captured, whatever
this process did to it since, so it may be done twice. An object that was changed in
place is restored in place, since others may refer to it too.

Refuses nothing: what cannot be captured is named in ``Walk.uncaptured``, what cannot be
put back in ``Walk.problems``.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np

from resilient.objects import kinds
from resilient.objects.handlers import HeldVariables, StateDict, StateHandler
from resilient.objects.snapshot import Remembered, assign_in_place
from resilient.objects.traversal import Action, Place, Walk
from resilient.serialization import Encoded, classes
from resilient.serialization.json_values import NotEncodable, decode, encode

# Set by Keras for every fit; the model has its own place in a checkpoint.
_NOT_STATE = frozenset({"model", "_model", "params", "validation_data"})
_MUTABLE = (list, dict, set, np.ndarray)
_DEPTH = 8


class Attributes:
    """The attributes of one object, as they were when this was made.

    Args:
        owner: The object.
        walk: The pass in which it is met.
        place: What to call it.
        fresh: Whether nothing is known of it from before: then all of it is a change.
        skip: Names of attributes that are someone else's business.
    """

    kind: ClassVar[str] = "attributes"

    def __init__(
        self,
        owner: Any,
        walk: Walk,
        place: Place,
        *,
        fresh: bool = False,
        skip: frozenset[str] = frozenset(),
    ) -> None:
        self.owner = owner
        self._skip = skip
        self._shared = _shared(type(owner))
        self._before: dict[str, Remembered] = {}
        self._held: dict[str, StateHandler] = {}
        for key, value in {} if fresh else self._read():
            inner = place.inside(key)
            self._before[key] = before = Remembered(value, inner.name)
            if (held := hold(value, walk, inner, known=before.known)) is not None:
                self._held[key] = held

    # How the parts of an object are reached; ``Items`` has its own ways. -------------

    def _read(self) -> list[tuple[str, Any]]:
        parts = classes.attributes(self.owner)
        for key, value in self._shared.items():
            parts.setdefault(key, value)
        hidden = self._skip | _NOT_STATE
        return [(key, value) for key, value in parts.items() if key not in hidden]

    def _set(self, key: str, value: Any) -> None:
        object.__setattr__(self.owner, key, value)

    def _delete(self, key: str) -> None:
        object.__delattr__(self.owner, key)

    # --------------------------------------------------------------------------------

    def capture(self, walk: Walk, place: Place) -> Encoded | None:
        """The changes since the beginning as JSON; None if there are none."""
        changed: dict[str, Encoded] = {}
        inner: dict[str, Encoded] = {}
        live = self._read()
        for key, value in live:
            here = place.inside(key)
            held = self._held.get(key)
            if held is not None and held.owner is value:
                if walk.enter(value):
                    state = held.capture(walk, here)
                    if state is not None:
                        inner[key] = {"kind": held.kind, "state": state}
            elif walk.knows(value):
                continue
            else:
                found = self._captured(key, value, walk, here)
                if found is not None:
                    (inner if "kind" in found else changed)[key] = found
        deleted = sorted(set(self._before) - {key for key, _ in live})
        parts = {"changed": changed, "inner": inner, "deleted": deleted}
        return {name: part for name, part in parts.items() if part} or None

    def _captured(
        self,
        key: str,
        value: Any,
        walk: Walk,
        place: Place,
    ) -> Encoded | None:
        before = self._before.get(key)
        found: dict[str, np.ndarray] = {}
        try:
            data = encode(value, found, place.name)
        except NotEncodable:
            if before is not None and before.is_object(value):
                return None  # named at the beginning, or configuration
            held = hold(value, walk, place, fresh=True)
            if held is None:
                walk.refuse(place, value)
                return None
            state = held.capture(walk, place)
            return {"kind": held.kind, "state": state, "new": True}
        if before is not None and before.is_now(data, found):
            return None
        data = walk.keep(value, data, found, place)
        same = before is not None and before.is_object(value)
        return {"value": data, "in_place": True} if same else {"value": data}

    def plan(self, walk: Walk, saved: Encoded | None, place: Place) -> list[Action]:
        """What to do to be as captured; nothing is done before the actions run."""
        saved = saved or {}
        changed, inner = saved.get("changed", {}), saved.get("inner", {})
        live = dict(self._read())
        actions: list[Action] = []
        for key, item in changed.items():
            value = decode(item["value"], walk.arrays)
            actions.append(partial(self._put, key, value, "in_place" in item))
        for key in saved.get("deleted", ()):
            if key in live:
                actions.append(partial(self._delete, key))
        for key, item in inner.items():
            actions += self._plan_inner(key, live, item, walk, place)
        handled = {*changed, *inner, *saved.get("deleted", ())}
        for key in [*live, *(key for key in self._before if key not in live)]:
            if key not in handled:
                actions += self._plan_back(key, live, walk, place)
        return actions

    def _plan_inner(
        self,
        key: str,
        live: Mapping[str, Any],
        item: Encoded,
        walk: Walk,
        place: Place,
    ) -> list[Action]:
        here = place.inside(key)
        held = self._held.get(key)
        actions: list[Action] = []
        if "new" in item and (held is None or held.owner is not live.get(key)):
            held = hold(live.get(key), walk, here, fresh=True)
        elif held is not None and held.owner is not live.get(key):
            actions.append(partial(self._set, key, held.owner))
        if held is None or held.kind != item["kind"]:
            walk.problems.append(f"{here.path}: there is no such object to restore")
            return []
        walk.enter(held.owner)
        return actions + held.plan(walk, item["state"], here)

    def _plan_back(
        self, key: str, live: Mapping[str, Any], walk: Walk, place: Place
    ) -> list[Action]:
        """Undo what this process changed and the captured one had not changed."""
        here = place.inside(key)
        before, held = self._before.get(key), self._held.get(key)
        if key in live:
            value = live[key]
            if held is not None and held.owner is value:
                return held.plan(walk, None, here) if walk.enter(value) else []
            if kinds.is_object(value) and before and before.is_object(value):
                return []  # has its turn elsewhere
            found: dict[str, np.ndarray] = {}
            try:
                data = encode(value, found, here.name)
            except NotEncodable:
                return []  # nothing was captured of it, so nothing is known
            if before is None:
                return [partial(self._delete, key)]
            if before.is_now(data, found):
                return []
        assert before is not None
        return self._put_back(key, before, walk, here)

    def _put_back(
        self, key: str, before: Remembered, walk: Walk, place: Place
    ) -> list[Action]:
        if not before.known or kinds.is_object(before.object()):
            return [partial(self._set, key, before.object())]
        try:
            return [partial(self._put, key, before.again(), True)]
        except LookupError:
            walk.problems.append(f"{place.path}: its first content was not kept")
            return []

    def _put(self, key: str, value: Any, in_place: bool) -> None:
        before = self._before.get(key)
        target = before.object() if before is not None else None
        if not in_place:  # a new object, made by this process too if it is at its place
            live = dict(self._read()).get(key)
            target = live if live is not target and kinds.is_object(live) else None
        if target is None or not assign_in_place(target, value):
            self._set(key, value)
        elif dict(self._read()).get(key) is not target:
            self._set(key, target)


def _shared(cls: type) -> dict[str, Any]:
    """What all instances share and may change in place."""
    found: dict[str, Any] = {}
    for base in cls.__mro__:
        if not classes.is_foreign(base):
            for key, value in vars(base).items():
                if isinstance(value, _MUTABLE) and not key.startswith("__"):
                    found.setdefault(key, value)
    return found


class Items(Attributes):
    """The items of a list, tuple or dict of which some are more than values."""

    kind: ClassVar[str] = "items"

    def capture(self, walk: Walk, place: Place) -> Encoded | None:
        if [key for key, _ in self._read()] != list(self._before):
            walk.refuse(place, self.owner)  # what was added could not be made again
            return None
        return super().capture(walk, place)

    def _read(self) -> list[tuple[str, Any]]:
        if isinstance(self.owner, dict):
            return [(str(key), item) for key, item in self.owner.items()]
        return [(str(index), item) for index, item in enumerate(self.owner)]

    def _set(self, key: str, value: Any) -> None:
        if isinstance(self.owner, dict):
            original = next((k for k in self.owner if str(k) == key), key)
            self.owner[original] = value
        else:
            self.owner[int(key)] = value

    def _delete(self, key: str) -> None:
        """Items that this process added stay; the next capture names them."""


def hold(
    value: Any, walk: Walk, place: Place, *, known: bool = False, fresh: bool = False
) -> StateHandler | None:
    """How to capture what ``value`` refers to; None if it is a mere value.

    Args:
        value: The value of an attribute or an item.
        walk: The pass in which it is met.
        place: What to call it.
        known: Whether it can be encoded as a value.
        fresh: Whether nothing is known of it from before.
    """
    cls: Callable[..., StateHandler] | None = None
    if kinds.is_object(value):
        cls = Attributes
    elif kinds.has_state_dict(value):
        cls = StateDict
    elif known:
        return None
    elif kinds.variables(value):
        cls = HeldVariables
    elif kinds.is_configuration(value):
        return None
    elif type(value) in (list, dict, tuple) and not fresh:
        cls = Items
    if cls is not None and place.depth <= _DEPTH:
        return cls(value, walk, place, fresh=fresh) if walk.enter(value) else None
    if not fresh:
        walk.refuse(place, value)
    return None
