"""The attributes of data objects, and of what these refer to: one pass over them.

Looked into are the user's own plain objects and their classes, datasets and samplers of
torch and Keras, and lists, tuples and dicts that hold some of them or something large,
also of subclasses of these. Everything else is one value.
"""

import contextlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from resilient.objects import kinds
from resilient.objects.datasets.content import Weight, weigh
from resilient.serialization import classes

_DEPTH = 8
_ITEMS = 1000  # of a container that is looked into
_NOT_STATE = frozenset({"_workers", "_use_multiprocessing", "_max_queue_size"})
_LOOKED_INTO = frozenset(
    {("torch", "Dataset"), ("torch", "Sampler"), ("keras", "PyDataset")}
    | {("types", "SimpleNamespace"), ("argparse", "Namespace"), ("_thread", "_local")}
    | {("collections", "UserDict"), ("collections", "UserList")}
)
_SHARED = (list, dict, set, np.ndarray, np.generic)
_SHARED_VALUES = (int, float, complex, str, bytes, tuple, type(None))


class DatasetPart(NamedTuple):
    """An attribute or an item, and whose it is."""

    path: str
    of: str
    owner: Any
    key: Any
    value: Any


class Visit:
    """One pass over the objects; objects that are met twice have one turn.

    Args:
        objects: Where it begins, by name.
        first: The first pass: only what it looked into is looked into again.
        asked: Whether these objects are asked for their state where they can tell it.

    Attributes:
        parts: What is not looked into, by path.
        owners: Whose attributes and items these are, by path.
        paths: Every path, also of what had its turn elsewhere, and its owner's.
        met: The ids of what was looked into.
    """

    def __init__(
        self, objects: Mapping[str, Any], first: "Visit | None", asked: bool
    ) -> None:
        self._first = first
        self.met = {id(value) for value in objects.values()}
        self.parts: dict[str, DatasetPart] = {}
        self.owners: dict[str, Any] = {}
        self.paths: dict[str, str] = {}
        for name, value in objects.items():
            if asked and kinds.has_state_dict(value):
                self.parts[name] = DatasetPart(name, "", None, name, value)
            else:
                self._into(name, value, _attributes(value), 1)

    def _into(
        self, of: str, owner: Any, inner: list[tuple[Any, Any]], depth: int
    ) -> None:
        self.owners[of] = owner
        for base in type(owner).__mro__:
            if not classes.is_foreign(base) and id(base) not in self.met:
                self.met.add(id(base))
                self._into(f"{of}:{base.__name__}", base, _shared(base), depth + 1)
        for key, value in inner:
            path = f"{of}.{key}" if isinstance(key, str) else f"{of}[{key!r}]"
            self.paths[path] = of
            if id(value) in self.met:
                continue
            parts = _inner(value) if depth < _DEPTH and self._again(path) else None
            if parts is None:
                self.parts[path] = DatasetPart(path, of, owner, key, value)
            else:
                self.met.add(id(value))
                self._into(path, value, parts, depth + 1)

    def _again(self, path: str) -> bool:
        return self._first is None or path in self._first.owners


def _inner(value: Any) -> list[tuple[Any, Any]] | None:
    """Attributes or items, where a value is looked into; None if it is one value."""
    cls = type(value)
    if kinds.has_state_dict(value):
        return None
    if classes.is_plain(cls) or any(
        (classes.top_module(base), base.__name__) in _LOOKED_INTO
        for base in cls.__mro__
    ):
        return _attributes(value)
    if not isinstance(value, list | tuple | dict) or len(value) > _ITEMS:
        return None
    if weigh(value) is Weight.LIGHT or getattr(value, "__dict__", None):
        return None  # what has both items and attributes is one value
    if isinstance(value, dict):
        return list(dict.items(value))
    return list(enumerate(value))


def _attributes(value: Any) -> list[tuple[Any, Any]]:
    """An object's own; these of its class are the class's."""
    found = classes.attributes(value)
    return [(key, item) for key, item in found.items() if key not in _NOT_STATE]


def _shared(cls: type) -> list[tuple[str, Any]]:
    """What all objects of a class share and may change: containers and values."""
    return [
        (key, item)
        for key, item in vars(cls).items()
        if isinstance(item, _SHARED + _SHARED_VALUES) and not key.startswith("__")
    ]


def put(part: DatasetPart, value: Any) -> None:
    """Set an attribute or item; those of a tuple stay."""
    if isinstance(part.owner, list) and part.key == len(part.owner):
        part.owner.append(value)
    elif isinstance(part.owner, dict | list):
        part.owner[part.key] = value
    elif not isinstance(part.owner, tuple):
        try:
            object.__setattr__(part.owner, part.key, value)  # frozen dataclasses, too
        except TypeError:  # a class, or an object of threads
            setattr(part.owner, part.key, value)


def delete(part: DatasetPart) -> None:
    """Delete an attribute or item."""
    if isinstance(part.owner, dict | list):
        del part.owner[part.key]
    elif not isinstance(part.owner, tuple):
        with contextlib.suppress(AttributeError):  # its class has it
            try:
                object.__delattr__(part.owner, part.key)
            except TypeError:
                delattr(part.owner, part.key)
