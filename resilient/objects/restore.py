"""Restores a tree of objects to a saved state, whatever this process has done to it.

Everything is decoded before anything is changed. Then each object gets its saved
content, or the content that it had when training began; the very same objects, since
others may refer to them. At the end, the tree is compared with what was saved.
"""

import collections
import enum
import inspect
import json
import re
import types
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from typing import Any

import numpy as np

from resilient.objects import kinds, leaves
from resilient.objects.changes import changes
from resilient.objects.parts import (
    MISSING,
    Globals,
    Node,
    Parts,
    hidden_of,
    items_of,
    owned_of,
)
from resilient.objects.tree import Tree
from resilient.objects.walk import CONTAINERS, is_value
from resilient.serialization import Entries, Entry, classes
from resilient.serialization.classes import Known
from resilient.serialization.json_values import Reference, decode
from resilient.serialization.schema import MalformedError, from_json, taking

_WHAT = "the state of objects"


def plan(
    tree: Tree, saved: object, arrays: Mapping[str, Any], *, only_step: bool = False
) -> Callable[[], list[str]]:
    """Read what ``changes`` returned; nothing changes until the result is called.

    Args:
        tree: The objects.
        saved: Their state.
        arrays: The larger arrays.
        only_step: Restore only what nothing but the training step reads.

    Returns:
        A function that restores it, and returns the names of what could not be.

    Raises:
        NotKnownError: It refers to a missing class or function.
        MalformedError: It is not what was saved.
    """
    with taking(_WHAT):
        restore = _Restore(tree, from_json(Entries, saved), arrays)
    return partial(restore.run, only_step=only_step)


class _Wanted:
    """What one object is to become, decoded."""

    def __init__(
        self, home: str, entry: Entry, arrays: Mapping[str, Any], known: Known
    ) -> None:
        self.gone = entry.get("gone", [])
        self.attributes = {
            name: decode(data, arrays, known)
            for name, data in entry.get("attributes", {}).items()
        }
        self.items: Any = MISSING
        if "items" in entry:
            self.items = decode(entry["items"], arrays, known)
            if type(self.items) not in (list, dict):
                raise MalformedError(f"the items of {home}")
        self.content: tuple[str, Any] | None = None
        if "content" in entry:
            kind, data = entry["content"]
            self.content = kind, decode(data, arrays, known)
        self.new: Callable[[], Any] | None = None
        if "made" in entry:
            self.new = self._maker(*entry["made"], arrays, known)

    def _maker(
        self, kind: str, data: Any, arrays: Mapping[str, Any], known: Known
    ) -> Callable[[], Any]:
        """What makes an object of this kind, empty if it is a container."""
        if kind in leaves.MADE:
            return partial(leaves.made, kind, decode(data, arrays, known))
        if kind == "object":
            return partial(classes.rebuild, known.named(data), {})
        if kind not in CONTAINERS:
            raise MalformedError(f"a new object of kind {kind!r}")
        cls = CONTAINERS[kind]
        if issubclass(cls, dict) is not (type(self.items) is dict):
            raise MalformedError(f"the items of a {kind}")
        argument = decode(data, arrays, known)
        if cls is collections.deque:
            return partial(cls, maxlen=argument)
        return partial(cls, argument) if cls is collections.defaultdict else cls


class _Restore:
    """One restore, which may be repeated."""

    def __init__(self, tree: Tree, entries: Entries, arrays: Mapping[str, Any]) -> None:
        self._tree, self._entries, self._arrays = tree, entries, arrays
        self._wanted = {
            home: _Wanted(home, entry, arrays, tree.known)
            for home, entry in entries.items()
        }
        self._new: dict[str, Any] = {}
        self._problems: dict[str, None] = {}

    @taking(_WHAT)
    def run(self, *, only_step: bool) -> list[str]:
        """Restore everything; return the names of what could not be restored."""
        tree, self._problems = self._tree, {}
        tree.take_built()
        self._new = {h: x.new() for h, x in self._wanted.items() if x.new is not None}
        nodes = tree.restorable(only_step=only_step)
        for node in nodes:
            if node.parts is None:
                self._restore_leaf(node)
        for home, value in self._new.items():
            self._set_attributes(home, value)
        for node in nodes:
            if node.parts is not None:
                self._restore_parts(node, node.parts)
        for home, value in self._new.items():  # keys may be hashed by attributes
            if (items := self._wanted[home].items) is not MISSING:
                _set_items(value, self._resolved(items, home))
        for home in self._wanted:
            if home not in tree.homes and home not in self._new:
                self._problems[tree.label(home)] = None
        self._compare()
        return list(self._problems)

    def _set_attributes(self, home: str, value: Any) -> None:
        for name, item in self._wanted[home].attributes.items():
            found = self._resolved(item, home)
            if not classes.is_attribute(name) or found is MISSING:
                self._fail(home, value)
                continue
            object.__setattr__(value, name, found)

    def _restore_leaf(self, node: Node) -> None:
        wanted = self._wanted.get(node.home)
        if wanted is not None and wanted.content is not None:
            self._write(node, *wanted.content)
        elif node.kind == "long":
            if items_of(node.value) != node.kept:
                self._reorder(node, np.arange(len(node.kept)))
        elif not (node.learned or self._is_as_it_was(node)):
            if node.kept is None:
                self._fail(node.home, node.value)
            else:
                self._write(node, node.kind, decode(*node.kept))

    def _is_as_it_was(self, node: Node) -> bool:
        if node.mark is None:
            return True
        limit = self._tree.scope.limit
        return leaves.mark(node.value, node.kind, limit) == node.mark

    def _write(self, node: Node, kind: str, plain: Any) -> None:
        if kind == node.kind == "long":
            self._reorder(node, plain)
            return
        try:
            if kind != node.kind:
                raise ValueError("another kind of content")
            leaves.write(node.value, kind, plain)
        except Exception:  # another shape, or the object's own code failed
            self._fail(node.home, node.value)

    def _reorder(self, node: Node, order: Any) -> None:
        fits = type(order) is np.ndarray and order.dtype == np.int64
        if not fits or sorted(order.tolist()) != [*range(len(node.kept))]:
            raise MalformedError(f"the order of {node.home} has not each place once")
        if isinstance(node.value, list):
            node.value[:] = [node.kept[place] for place in order.tolist()]
        else:
            self._fail(node.home, node.value)

    def _restore_parts(self, node: Node, first: Parts) -> None:
        owner = node.value
        now = self._tree.scope.parts_of(node.home, owner)
        if now is None:
            return
        live = now.attributes
        wanted = self._attributes(node, {} if node.learned else first.attributes)
        for name, value in wanted.items():
            there = live.get(name, MISSING)
            before = first.attributes.get(name, MISSING)
            opened = value is before and self._tree.is_handle(value, there)
            if there is value or opened:
                continue
            if self._may_write(owner, node.home, name):
                _put(owner, name, value)
            else:
                self._fail(f"{node.home}.{name}", value)
        for name, value in live.items():
            if name not in wanted and self._goes(node, name, value):
                _put(owner, name, MISSING)
        if first.items is not None:
            self._restore_items(node, first.items)

    def _attributes(self, node: Node, first: Mapping[str, Any]) -> dict[str, Any]:
        """What the attributes of an object are to be."""
        found, wanted = dict(first), self._wanted.get(node.home)
        if wanted is None:
            return found
        for name in wanted.gone:
            if self._may_write(node.value, node.home, name):
                found.pop(name, None)
            else:
                self._fail(f"{node.home}.{name}", None)
        for name, item in wanted.attributes.items():
            value = self._resolved(item, f"{node.home}.{name}")
            if value is not MISSING:
                found[name] = value
        return found

    def _goes(self, node: Node, name: str, value: Any) -> bool:
        """Whether an attribute that is not wanted is deleted: no file opened since."""
        wanted = self._wanted.get(node.home)
        if wanted is not None and name in wanted.gone:
            return True
        if node.learned:
            return False
        known = id(value) in self._tree.nodes or self._tree.can_be_made(value)
        plain = (list, dict, tuple, set, frozenset, enum.Enum)
        return known or isinstance(value, plain) or is_value(value)

    def _restore_items(self, node: Node, first: tuple[Any, ...]) -> None:
        owner, wanted = node.value, self._wanted.get(node.home)
        if wanted is not None and wanted.items is not MISSING:
            items = self._resolved(wanted.items, node.home)
            if isinstance(items, dict) is not isinstance(owner, dict):
                self._fail(node.home, owner)
                return
        elif node.learned:
            return
        elif isinstance(owner, dict):
            half = len(first) // 2
            items = dict(zip(first[:half], first[half:], strict=True))
        else:
            items = first
        _set_items(owner, items)

    def _may_write(self, owner: Any, home: str, name: str) -> bool:
        """Whether an attribute holds data, and may be set from a checkpoint."""
        if isinstance(owner, Globals):
            return name in owner.names
        if isinstance(owner, types.CellType):
            return name == "cell_contents"
        if not classes.is_attribute(name) or kinds.names_a_place(owner, name):
            return False
        cls = type(owner)
        hidden = hidden_of(cls) | owned_of(cls)
        if name in hidden or name in self._tree.scope.hidden.get(home, ()):
            return False
        if isinstance(owner, type):
            cls = owner
        elif name in getattr(owner, "__dict__", {}):
            return True
        there = inspect.getattr_static(cls, name, None)
        cached = isinstance(there, cached_property)
        is_method = callable(there) or (hasattr(type(there), "__get__") and not cached)
        return isinstance(there, types.MemberDescriptorType) or not is_method

    def _resolved(self, item: Any, home: str) -> Any:
        """A decoded value with the objects that it refers to."""
        if isinstance(item, Reference):
            if item.home in self._new:
                return self._new[item.home]
            node = self._tree.homes.get(item.home)
            # A checkpoint must not pass on code.
            if node is None or kinds.is_code(node.value):
                self._problems[self._tree.label(home)] = None
                return MISSING
            return node.value
        cls = type(item)
        if cls is list:
            return list(self._all(item, home))
        if cls is dict:
            values = self._all(item.values(), home)
            return dict(zip(self._all(item, home), values, strict=False))
        if isinstance(item, tuple):
            return tuple.__new__(cls, self._all(item, home))
        return frozenset(self._all(item, home)) if cls is frozenset else item

    def _all(self, items: Any, home: str) -> Iterator[Any]:
        found = (self._resolved(item, home) for item in items)
        return (item for item in found if item is not MISSING)

    def _fail(self, path: str, value: Any) -> None:
        self._problems[self._tree.name(path, value)] = None

    def _compare(self) -> None:
        """Name what is not as it was saved."""
        arrays: dict[str, np.ndarray] = {}
        now = changes(self._tree, arrays)
        for home, entry in self._entries.items():
            node = self._tree.homes.get(home)
            asked = node is not None and node.kind in ("state_dict", "file")
            if home not in now or asked:  # as the script makes it, or what it says
                continue
            was, found = _by_place(entry), _by_place(now[home])
            # What was saved and is no change here is as this script makes it.
            if not all(
                _are_equal(was.get(place), x, self._arrays, arrays)
                for place, x in found.items()
            ):
                value = self._new[home] if node is None else node.value
                self._fail(home, value)


def _by_place(entry: Entry) -> dict[str, Any]:
    """What is saved of an object, each attribute on its own."""
    attributes = {f"attribute {n}": x for n, x in entry.get("attributes", {}).items()}
    gone = {f"attribute {name}": "gone" for name in entry.get("gone", ())}
    rest = {n: x for n, x in entry.items() if n not in ("attributes", "gone")}
    return attributes | gone | rest


def _are_equal(
    was: Any, now: Any, theirs: Mapping[str, Any], ours: Mapping[str, Any]
) -> bool:
    """Whether two encoded values are the same, arrays included."""
    text = json.dumps(was, sort_keys=True)
    return text == json.dumps(now, sort_keys=True) and all(
        np.asarray(theirs[name]).tobytes() == np.asarray(ours[name]).tobytes()
        for name in re.findall(r'"array": "([^"]*)"', text)
    )


def _put(owner: Any, name: str, value: Any) -> None:
    """Set an attribute, or delete it if the value is missing, and call nothing."""
    slot = inspect.getattr_static(type(owner), name, None)
    values = owner.values if isinstance(owner, Globals) else None
    if values is None and not isinstance(owner, types.CellType | type):
        in_slot = isinstance(slot, types.MemberDescriptorType)
        values = None if in_slot else owner.__dict__
    base: Any = type if isinstance(owner, type) else object
    if values is None and value is MISSING:
        base.__delattr__(owner, name)
    elif values is None:
        base.__setattr__(owner, name, value)
    elif value is MISSING:
        del values[name]
    else:
        values[name] = value


def _set_items(owner: Any, items: Any) -> None:
    """Give a container these items, past what a derived class does."""
    if isinstance(owner, list):
        list.__setitem__(owner, slice(None), items)
    elif isinstance(owner, collections.deque):
        owner.clear()
        owner.extend(items)
    else:
        ordered = isinstance(owner, collections.OrderedDict)
        base: Any = collections.OrderedDict if ordered else dict
        base.clear(owner)
        for key, value in items.items():
            base.__setitem__(owner, key, value)
