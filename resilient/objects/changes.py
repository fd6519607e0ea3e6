"""Finds what differs from the beginning in a tree of objects, and encodes it.

Identity comes first: an object that holds the very same objects has not changed. Only
what can change in place (arrays, tensors, variables, generators) is read each time.
"""

import collections
import contextlib
import enum
import functools
import re
import sys
import types
from collections.abc import Iterator, Mapping
from collections.abc import Set as AnySet
from typing import Any

import numpy as np

from resilient.keras_internals import BACKEND
from resilient.objects import kinds, leaves
from resilient.objects.parts import MISSING, Globals, Node, are, items_of, parts_of
from resilient.objects.tree import Tree
from resilient.objects.walk import (
    CONTAINERS,
    is_transparent,
    is_value,
    path_of,
    unwrapped,
)
from resilient.serialization import Encoded, Entries, Entry, classes
from resilient.serialization.json_values import (
    NotEncodable,
    decode,
    encode,
    has_order,
)
from resilient.state.settings import settings_of

# Functions that a model makes, and what makes them, where that draws random numbers.
_FIRST_CALLS = {
    "tensorflow": {},
    "jax": {"train_function": "fit"},
    "torch": {"train_function": "fit", "test_function": "evaluate"},
}[BACKEND]


class _Lost(NotEncodable):
    """A change that cannot be saved."""


class _NotState(NotEncodable):
    """A place that holds what is saved elsewhere."""


def changes(tree: Tree, arrays: dict[str, np.ndarray]) -> Entries:
    """What differs from the beginning, by home.

    Args:
        tree: The objects; gets the names of what is lost, and of what is baked into
            traced steps.
        arrays: Receives the larger arrays, not copied.
    """
    tree.take_built()
    return _Pass(tree, arrays).run()


def settle(tree: Tree) -> None:
    """A step was traced: what that changed, it will change in each process."""
    found = _Pass(tree, {}).changed()
    # Plain values are named: a script may count on them.
    tree.moving = frozenset(name for name, plain in found.items() if not plain)


class _Pass:
    """One pass over a tree."""

    def __init__(self, tree: Tree, arrays: dict[str, np.ndarray]) -> None:
        self._tree, self._arrays = tree, arrays
        self._late: dict[int, str] = {}  # homes of new objects, by id
        self._made: Entries = {}
        self._homes = set(tree.homes)
        self._views: list[tuple[str, np.ndarray]] = []  # new, into other arrays

    @functools.cached_property
    def _own(self) -> AnySet[int]:
        return self._tree.scope.own()

    def run(self) -> Entries:
        tree, found = self._tree, Entries()
        watched = tree.watched()
        for node in watched:
            self._find_first_calls(node)
        for node in tree.differing():
            if tree.is_baked(node):
                names = self._changed(node)
                tree.baked |= dict.fromkeys(n for n in names if n not in tree.moving)
                if not node.outside or node.kind == "variable":
                    continue
            entry = self._entry(node)
            if entry:
                found[node.home] = entry
        for path, view in self._views:  # which would be an array of its own
            known = tree.nodes.get(id(view.base))
            if id(view.base) in self._late or (known and known.home in found):
                self._lose(path, view)
        return found | self._made

    def _find_first_calls(self, node: Node) -> None:
        """Name a model of a callback that was called for the first time in training.

        That draws from a global generator, as it will after each restart.
        """
        if node.parts is None or not node.outside or node.in_step:
            return
        for name, call in _FIRST_CALLS.items():
            path = f".{name}"
            made = node.parts.muted.get(path, MISSING) is None
            if made and vars(node.value).get(name) is not None:
                label = self._tree.label(node.home + path)
                self._tree.lost[f"{label} (call {call} once before training)"] = None

    def changed(self) -> dict[str, bool]:
        """Names of what changed in traced steps, and whether it is a plain value."""
        found: dict[str, bool] = {}
        for node in self._tree.watched():
            if self._tree.is_baked(node):
                found |= self._changed(node)
        return found

    def _changed(self, node: Node) -> dict[str, bool]:
        """The same of one object."""
        value = node.value
        if node.learned:
            return {}
        home, fills = self._tree.label(node.home), self._tree.fills(node)
        if node.parts is None:
            limit, variable = self._tree.scope.limit, node.kind == "variable"
            same = leaves.mark(value, node.kind, limit) == node.mark
            return {} if same or (fills and not variable) else {home: variable}
        parts, old = parts_of(value), node.parts
        if parts is None:
            return {}
        now, before = parts.attributes, old.attributes
        # What functions count, or an object of Keras learns of the first batch.
        in_code = isinstance(value, Globals | types.CellType)
        found: dict[str, bool] = {}
        for name in {**before, **now}:
            was, new = before.get(name, MISSING), now.get(name, MISSING)
            if was is not new and not _are_equal(was, new):
                settled = in_code or name in settings_of(type(value))
                found[path_of(home, name)] = is_value(new) and not settled
        if parts.items is None or fills or are(parts.items, old.items or ()):
            return found
        return {**found, home: False}

    def _entry(self, node: Node) -> Entry:
        value = node.value
        if node.parts is None:
            return self._leaf(node, value)
        parts, old = self._tree.scope.parts_of(node.home, value), node.parts
        if parts is None:
            return {}
        entry: Entry = {}
        for suffix in node.lost_code(parts):
            self._lose(node.home + suffix, parts.others.get(suffix))
        attributes = self._attributes(node, parts.attributes)
        if attributes:
            entry["attributes"] = attributes
        gone = [name for name in old.attributes if name not in parts.attributes]
        if gone:
            entry["gone"] = gone
        if parts.items is not None and (
            node.learned or not are(parts.items, old.items or ())
        ):
            with self._losing(node.home, value):
                entry["items"] = self._items(value, node.home)
        return entry

    def _attributes(self, node: Node, now: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        old = {} if node.learned or node.parts is None else node.parts.attributes
        for name, value in now.items():
            before = old.get(name, MISSING)
            if before is value or _are_equal(before, value):
                continue
            if self._tree.is_handle(before, value):
                continue
            path = path_of(node.home, name)
            data = isinstance(node.value, Globals) or classes.is_attribute(name)
            if not data or kinds.names_a_place(node.value, name):
                if not data or before is not MISSING:
                    self._lose(path, value)
                continue
            with self._losing(path, value):
                found[name] = self._part(value, path)
        return found

    def _part(self, value: Any, path: str, *, whole: bool = False) -> Encoded:
        return encode(
            value,
            self._arrays,
            _array_name(path),
            self._tree.known,
            path=path,
            refer=self._refer,
            whole=whole,
        )

    def _items(self, value: Any, path: str) -> Encoded:
        self._check_size(path, value)
        plain = dict(value) if isinstance(value, dict) else list(value)
        return self._part(plain, path, whole=True)

    def _leaf(self, node: Node, value: Any) -> Entry:
        with self._losing(node.home, value):
            now = leaves.mark(value, node.kind, self._tree.scope.limit)
            if node.kind == "library":
                if node.mark is not None and now not in (node.mark, None):
                    raise _Lost(node.home, value)
                return {}
            if node.kind == "long":
                return self._long(node, value, now)
            if not node.learned and now == node.mark:
                return {}
            self._check_size(node.home, value)
            return {"content": self._content(node.home, value, node.kind)}
        return {}

    def _content(self, home: str, value: Any, kind: str) -> tuple[str, Encoded]:
        of_objects = kind == "ndarray" and value.dtype.hasobject
        if of_objects and not all(map(is_value, value.flat)):  # others may hold them
            raise _Lost(home, value)
        plain = leaves.read(value, kind)
        if isinstance(value, set) and has_order(value):
            self._find_disorder(home, value, plain)
        return kind, encode(plain, self._arrays, _array_name(home))

    def _find_disorder(self, home: str, value: set[Any], plain: set[Any]) -> None:
        """Name a set that a resumed run may iterate over, or pop from, in other order.

        Not one that has only grown, and is the same where the items of its copy, which
        is saved, are added anew.
        """
        node, new = self._tree.homes.get(home), set(iter(plain))
        kept = set() if node is None or node.kept is None else decode(*node.kept)
        before = self._tree.sets.get(home, kept)
        self._tree.sets[home] = new
        alike = list(new) == list(value) and sys.getsizeof(new) == sys.getsizeof(value)
        if not (alike and before <= new):
            self._tree.lost[f"{self._tree.label(home)} (the order of a set)"] = None

    def _long(self, node: Node, value: Any, mark: str | None) -> Entry:
        now = items_of(value)
        if are(now, node.kept) and mark == node.mark:
            return {}
        order = leaves.order(node.kept, now)
        if order is None:
            raise _Lost(node.home, value)
        content = encode(order, self._arrays, _array_name(node.home))
        return {"content": (node.kind, content)}

    def _check_size(self, path: str, value: Any) -> None:
        if not self._tree.scope.is_limited:
            return
        if kinds.is_long(value) or getattr(value, "nbytes", 0) > leaves.KEPT_BYTES:
            raise _Lost(path, value)

    @contextlib.contextmanager
    def _losing(self, path: str, value: Any) -> Iterator[None]:
        """Name a place whose content cannot be saved, and forget what came of it."""
        arrays, late = set(self._arrays), len(self._late)
        try:
            yield
        except (NotEncodable, RecursionError) as error:
            for new in list(self._late)[late:]:
                self._made.pop(self._late.pop(new), None)
            for name in set(self._arrays) - arrays:
                del self._arrays[name]
            if not isinstance(error, _NotState):
                self._lose(path, value)

    def _lose(self, path: str, value: Any) -> None:
        self._tree.lost[self._tree.name(path, value)] = None

    # References ----------------------------------------------------------------------

    def _refer(self, value: Any, path: str) -> str | None:
        """The home of an object; None for a value that is encoded as it is."""
        value = unwrapped(value)
        if is_value(value) or is_transparent(value) or isinstance(value, enum.Enum):
            return None
        node = self._tree.nodes.get(id(value))
        of_items = isinstance(value, list | dict | collections.deque)
        if node is None and not of_items and id(value) in self._own:
            raise _NotState(path, value)
        if kinds.is_code(value):
            if classes.is_of_all(value):
                return None
            raise _Lost(path, value)
        if node is not None:
            return node.home
        if id(value) not in self._late:
            self._make(value, path)
        return self._late[id(value)]

    def _make(self, value: Any, path: str) -> None:
        """Save an object that training made."""
        self._check_size(path, value)
        bits = getattr(value, "bit_generator", None)
        if not self._tree.can_be_made(value) or id(bits) in self._tree.nodes:
            raise _Lost(path, value)
        if isinstance(value, np.ndarray) and value.base is not None:
            self._views.append((path, value))
        home = f"{path}+"
        while home in self._homes:
            home += "+"
        self._homes.add(home)
        self._late[id(value)] = home
        self._made[home] = {}  # it may refer to itself
        self._made[home] = self._new(home, value)

    def _new(self, home: str, value: Any) -> Entry:
        kind = kinds.kind_of(value)
        if kind is not None:
            return {"made": self._content(home, value, kind)}
        if isinstance(value, list | dict | collections.deque):
            argument: Any = None
            if isinstance(value, collections.deque):
                argument = value.maxlen
            elif isinstance(value, collections.defaultdict):
                argument = value.default_factory
            found = (c for c in type(value).__mro__ if c in CONTAINERS.values())
            made = next(found, list).__name__, self._part(argument, home)
            return {"made": made, "items": self._items(value, home)}
        attributes = classes.attributes(value).items()
        return {
            "made": ("object", classes.reference(type(value))),
            "attributes": {n: self._part(x, path_of(home, n)) for n, x in attributes},
        }


def _are_equal(before: Any, value: Any) -> bool:
    """Whether two plain values are the same."""
    if type(before) is not type(value) or not is_value(value):
        return False
    try:
        return repr(before) == repr(value)
    except ValueError:  # Python makes no text of an int of 4,301 digits
        return bool(before == value)


def _array_name(path: str) -> str:
    """Prefix of the names of the arrays at a path."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", path)
