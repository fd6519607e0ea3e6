"""Walks over objects: their attributes, and those of what they refer to.

It looks into user-defined plain objects and their classes; callbacks, datasets and
samplers of torch and Keras; and lists, tuples and dicts that hold some of these or
something large, subclasses included. Everything else is one value.

An object has one home: the path at which the first pass met it. Later passes identify
it by that path, wherever it has moved and whatever else refers to it.
"""

import contextlib
import inspect
import re
import types
from collections.abc import Mapping
from typing import Any, NamedTuple

import keras
import numpy as np

from resilient.objects import kinds
from resilient.objects.content import Scope
from resilient.objects.sizing import Size
from resilient.serialization import classes

_DEPTH = 8
_ITEMS = 1000  # most items of a container to look into
_LOOKED_INTO = frozenset(
    {("torch", "Dataset"), ("torch", "Sampler"), ("keras", "PyDataset")}
    | {("types", "SimpleNamespace"), ("argparse", "Namespace"), ("_thread", "_local")}
    | {("collections", "UserDict"), ("collections", "UserList")}
)
# Set by Keras for every fit; the model has its own place in a checkpoint.
_OF_CALLBACKS = frozenset({"model", "_model", "params", "validation_data"})
_OF_DATASETS = frozenset({"_workers", "_use_multiprocessing", "_max_queue_size"})
_SHARED = (list, dict, set, np.ndarray, np.generic)
_VALUES = frozenset({type(None), bool, int, float, complex, str, bytes, np.ndarray})
_SHARED_VALUES = (int, float, complex, str, bytes, tuple, type(None))

Inner = list[tuple[Any, Any]]


class Slot(NamedTuple):
    """An attribute or an item, and its owner.

    Attributes:
        path: Where it is, from the name of a root.
        of: The home of its owner.
        owner: An object, class or container; None for a root.
        key: Name of the attribute, index or key of the item.
        value: The value.
    """

    path: str
    of: str
    owner: Any
    key: Any
    value: Any


class Visit:
    """One pass; an object met twice is looked into once.

    Args:
        roots: Where to start, by name.
        scope: What is state.
        first: The first pass, which knows the homes of objects. Other objects are
            looked into only if they replace a known one or, if everything is state, if
            no checkpoint can recreate them.
        since: An earlier first pass: roots that it knows count as they were then.

    Attributes:
        parts: What is at each path.
        owners: Objects that were looked into, by home.
        homes: The home of the object at a path, if it has one.
    """

    def __init__(
        self,
        roots: Mapping[str, Any],
        scope: Scope,
        first: "Visit | None" = None,
        since: "Visit | None" = None,
    ) -> None:
        self.roots = dict(roots)
        self._scope = scope
        self._first: Visit | None = first
        self.parts: dict[str, Slot] = {}
        self.owners: dict[str, Any] = {}
        self.homes: dict[str, str] = {}
        self.known: dict[int, str] = {}
        todo = list(self.roots) if since is None else self._go_on_from(since)
        self.known |= {id(value): name for name, value in self.roots.items()}
        for name in todo:
            value = self.roots[name]
            if not (kinds.has_state_dict(value) and scope.asks):
                hidden = scope.hidden.get(name, frozenset())
                inner = [(k, v) for k, v in _attributes(value) if k not in hidden]
                self._look_into(name, value, inner, 1)
            elif not scope.whole:  # else by whoever made this
                self.parts[name] = Slot(name, "", None, name, value)
        # Others may still refer to objects that no root reaches any more.
        for home, owner in first.owners.items() if first is not None else ():
            if home not in self.owners and id(owner) not in self.known:
                self._look_into(home, owner, _contents(owner), 1)

    def root(self, path: str) -> str | None:
        """The name of the root from which a path leads; None if there is none."""
        return next((name for name in self.roots if is_below(path, name)), None)

    def object(self, home: str) -> Any:
        """The object at home there, if any."""
        return self.owners.get(home, self.roots.get(home))

    def _go_on_from(self, since: "Visit") -> list[str]:
        """Take over what is known about the same roots; return the other names."""
        kept = [n for n, value in self.roots.items() if since.roots.get(n) is value]

        def is_kept(path: str) -> bool:
            return any(is_below(path, name) for name in kept)

        self.parts = {path: x for path, x in since.parts.items() if is_kept(path)}
        self.owners = {path: x for path, x in since.owners.items() if is_kept(path)}
        self.known = {key: path for key, path in since.known.items() if is_kept(path)}
        self.homes = {path: home for path, home in since.homes.items() if is_kept(path)}
        return [name for name in self.roots if name not in kept]

    def _look_into(self, home: str, owner: Any, inner: Inner, depth: int) -> None:
        self.owners[home] = owner
        self.known[id(owner)] = home
        for base in type(owner).__mro__:
            if not classes.is_foreign(base) and id(base) not in self.known:
                shared = self._known_home(base) or f"{home}:{base.__name__}"
                while shared in self.owners:  # its base class has the same name
                    shared += "'"
                self._look_into(shared, base, _of_class(base), depth + 1)
        items = has_items(owner)
        for key, value in inner:
            path = path_of(home, key, items=items)
            self.parts[path] = Slot(path, home, owner, key, value)
            self._find_home(path, home, value, depth)

    def _find_home(self, path: str, of: str, value: Any, depth: int) -> None:
        inner: Inner | None = None
        home = self._known_home(value)
        if home is None and depth < _DEPTH and path not in self.owners:
            inner = self._inner(path, of, value)
            home = None if inner is None else path
        if home is None:
            return
        self.homes[path] = home
        if home not in self.owners and home not in self.roots:
            self._look_into(home, value, inner or _contents(value), depth + 1)

    def _known_home(self, value: Any) -> str | None:
        home = self.known.get(id(value))
        if home is not None or self._first is None:
            return home
        home = self._first.known.get(id(value))
        return None if home in self.owners else home  # taken by another object

    def _inner(self, path: str, of: str, value: Any) -> Inner | None:
        """Attributes or items of a value to look into; None for others."""
        if self._first is None:
            return _inner(value, self._scope)
        if path in self._first.owners:  # may replace the former object
            alike = type(value) is type(self._first.owners[path])
            return _inner(value, self._scope) if alike else None
        if not self._scope.whole or isinstance(value, list | tuple | dict):
            return None
        in_new = of not in self._first.owners
        if in_new or self._scope.size_of(value) is not Size.LIGHT:
            return _inner(value, self._scope)  # a new object
        return None


def path_of(home: str, key: Any, *, items: bool) -> str:
    """The path of an attribute or item of the object at home there."""
    is_name = not items and str(key).isidentifier()
    return f"{home}.{key}" if is_name else f"{home}[{key!r}]"


def array_name(path: str) -> str:
    """Prefix of the names of the arrays at a path."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", path)


def is_below(path: str, name: str) -> bool:
    """Whether a path leads from the root of this name."""
    return path == name or path.startswith((f"{name}.", f"{name}[", f"{name}:"))


def _inner(value: Any, scope: Scope) -> Inner | None:
    cls = type(value)
    if cls in _VALUES:
        return None
    if kinds.has_state_dict(value) or (scope.whole and kinds.is_configuration(value)):
        return None
    if (
        classes.is_plain(cls)
        or isinstance(value, keras.callbacks.Callback)
        or any((classes.top_module(b), b.__name__) in _LOOKED_INTO for b in cls.__mro__)
    ):
        return _contents(value)
    if not isinstance(value, list | tuple | dict) or len(value) > _ITEMS:
        return None
    if scope.size_of(value) is Size.LIGHT or getattr(value, "__dict__", None):
        return None  # something with both items and attributes is one value
    if isinstance(value, dict) and not {type(key) for key in value} <= {str, int}:
        return None
    return _contents(value)


def has_items(owner: Any) -> bool:
    """Whether to look into its items rather than its attributes."""
    container = isinstance(owner, list | tuple | dict)
    return container and not getattr(owner, "__dict__", None)


def _contents(value: Any) -> Inner:
    if has_items(value):
        pairs = dict.items(value) if isinstance(value, dict) else enumerate(value)
        return list(pairs)
    return _of_class(value) if isinstance(value, type) else _attributes(value)


def _attributes(value: Any) -> Inner:
    """An object's own attributes; those of its class belong to the class."""
    hidden = hidden_of(value)
    return [(k, v) for k, v in classes.attributes(value).items() if k not in hidden]


def hidden_of(owner: Any) -> frozenset[str]:
    """Attributes that are never state."""
    if isinstance(owner, keras.callbacks.Callback):
        return _OF_CALLBACKS
    if isinstance(owner, keras.utils.PyDataset):
        return _OF_DATASETS
    return frozenset()


def _of_class(cls: type) -> Inner:
    """Mutable class attributes: containers and values."""
    return [
        (key, item)
        for key, item in vars(cls).items()
        if isinstance(item, _SHARED + _SHARED_VALUES) and not key.startswith("__")
    ]


def put(part: Slot, value: Any) -> bool:
    """Set an attribute or item; False if impossible."""
    owner = part.owner
    if isinstance(owner, tuple) or not (has_items(owner) or _is_data(part)):
        return False
    with contextlib.suppress(AttributeError, IndexError, TypeError):
        if isinstance(owner, list) and part.key == len(owner):
            owner.append(value)
        elif isinstance(owner, dict | list):
            owner[part.key] = value
        else:
            try:
                object.__setattr__(owner, part.key, value)  # frozen dataclasses, too
            except TypeError:  # a class, or a thread-local object
                setattr(owner, part.key, value)
        return True
    return False


def _is_data(part: Slot) -> bool:
    """Whether it is an attribute that holds data, and hides no method of its class."""
    owner, key = part.owner, part.key
    if not classes.is_attribute(key):
        return False
    if not isinstance(owner, type) and key in getattr(owner, "__dict__", {}):
        return True
    cls = owner if isinstance(owner, type) else type(owner)
    hidden = inspect.getattr_static(cls, key, None)
    is_method = callable(hidden) or hasattr(type(hidden), "__get__")
    return isinstance(hidden, types.MemberDescriptorType) or not is_method  # a slot


def delete(part: Slot) -> None:
    """Delete an attribute or item."""
    if isinstance(part.owner, dict | list):
        with contextlib.suppress(IndexError, KeyError):
            del part.owner[part.key]
    elif not isinstance(part.owner, tuple):
        with contextlib.suppress(AttributeError):  # it is on the class
            try:
                object.__delattr__(part.owner, part.key)
            except TypeError:
                delattr(part.owner, part.key)
