"""Takes objects apart: what each consists of, and what it only refers to."""

import argparse
import collections
import contextlib
import enum
import functools
import operator
import queue
import sys
import threading
import types
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AnySet
from dataclasses import dataclass, field, replace
from typing import Any

import keras

from resilient.keras_internals.bookkeeping import owned_by
from resilient.objects.kinds import is_keras
from resilient.once import once
from resilient.serialization import classes

MISSING = object()  # stands for no value
# Objects of the standard library that are nothing but their attributes.
_OPEN = (
    *(types.SimpleNamespace, argparse.Namespace, threading.local, queue.Queue),
    *(collections.UserDict, collections.UserList),
)
_CONTAINERS = (dict, list, collections.deque)
_DEFINED = (types.FunctionType, type)
_DESCRIPTORS = (staticmethod, classmethod, property, functools.cached_property)
# Set by Keras for every fit; the model has its own place in a checkpoint.
_OF_CALLBACKS = frozenset({"model", "_model", "params", "validation_data"})
_OF_DATASETS = frozenset({"_workers", "_use_multiprocessing", "_max_queue_size"})


@dataclass(frozen=True, slots=True)
class Parts:
    """What an object consists of.

    Attributes:
        attributes: State, by name.
        items: A copy of the items of a container, in order (of a dictionary: its keys,
            then its values); None for others.
        muted: What Keras or a backend keeps in it, by the suffix of the path.
        others: What else it refers to, likewise.
    """

    attributes: dict[str, Any] = field(default_factory=dict)
    items: tuple[Any, ...] | None = None
    muted: dict[str, Any] = field(default_factory=dict)
    others: Mapping[str, Any] = field(default_factory=dict)

    def without(self, names: Any) -> "Parts":
        """The same without some attributes."""
        kept = {n: x for n, x in self.attributes.items() if n not in names}
        return replace(self, attributes=kept)


class Globals:
    """The global names of a module that functions of the user use.

    Attributes:
        values: All globals of the module.
        names: Those that are used.
    """

    def __init__(self, values: dict[str, Any]) -> None:
        self.values, self.names = values, set[str]()


@dataclass(eq=False, slots=True)
class Node:
    """One object, as it was when training began.

    Attributes:
        home: The path at which it was met first; its name in a checkpoint.
        value: The object.
        kind: The kind of its content, ``"parts"`` or ``"opaque"``.
        parts: What it consisted of.
        mark: A checksum of its content.
        kept: Its content, if that is small.
        learned: Whether a callback made it when training began: all of it is state.
        state: Whether it is more than a container of Keras's own.
        in_step: Whether the training step may read it.
        outside: Whether anything else may.
        size: How many attributes it had with these parts, Keras's own included.
    """

    home: str
    value: Any
    kind: str = "opaque"
    parts: Parts | None = None
    mark: str | None = None
    kept: Any = None
    learned: bool = False
    state: bool = False
    in_step: bool = False
    outside: bool = False
    size: int = -1

    def take(self, hidden: Iterable[str] = ()) -> None:
        """It now counts as consisting of what is in it, but for some attributes."""
        self.size = len(self.value.__dict__) if _is_simple(type(self.value)) else 0
        self.parts = parts_of(self.value, hidden)

    def is_same(self, *, muted: bool = False) -> bool:
        """Whether it still holds the same objects; ``muted``: those of Keras, too."""
        parts, value, cls = self.parts, self.value, type(self.value)
        if parts is None or (self.learned and not muted):
            return False
        if parts.items is not None and not are(items_of(value), parts.items):
            return False
        if cls is dict or cls is list:
            return True
        own = parts.attributes
        space: Mapping[str, Any] | None = value.__dict__ if _is_simple(cls) else None
        if space is None or len(space) != self.size:
            found = parts_of(value)
            if found is None or found.attributes.keys() != own.keys():
                return False
            if self.lost_code(found):
                return False
            if space is None:
                space = found.attributes
            else:
                self.size = len(space)  # Keras added something of its own
        try:
            same = all(map(operator.is_, map(space.__getitem__, own), own.values()))
        except KeyError:
            return False
        if not (same and muted):
            return same
        known = parts.muted.items()
        return all(space.get(name[1:], MISSING) is item for name, item in known)

    def lost_code(self, now: Parts) -> list[str]:
        """Suffixes of methods, defaults and the like that are no longer the same."""
        if self.parts is None or not isinstance(self.value, _DEFINED):
            return []
        return [s for s, x in self.parts.others.items() if now.others.get(s) is not x]


def take(nodes: Iterable[Node], hidden: Mapping[str, AnySet[str]]) -> None:
    """Let these objects count as consisting of what is in them now.

    Args:
        nodes: The objects.
        hidden: Attributes that are handled elsewhere, by name of an object.
    """
    for node in nodes:
        node.take(hidden.get(node.home, ()))


def touched(nodes: Iterable[Node], *, muted: bool = False) -> list[Node]:
    """Those of some objects that may hold something else now."""
    return [node for node in nodes if not node.is_same(muted=muted)]


def are(now: tuple[Any, ...], then: tuple[Any, ...]) -> bool:
    """Whether both have the very same items."""
    return len(now) == len(then) and all(map(operator.is_, now, then))


@once
def _is_simple(cls: type) -> bool:
    """Whether such objects have their attributes in a dictionary, and nothing else."""
    known = bool(cls.__dictoffset__) and not classes.has_slots(cls)
    return known and not issubclass(cls, (*_DEFINED, Globals))


def parts_of(value: Any, hidden: Iterable[str] = ()) -> Parts | None:
    """What an object consists of; None for one that is not looked into.

    Args:
        value: The object.
        hidden: Attributes that are handled elsewhere.
    """
    way = way_of(type(value))
    parts = None if way is None else way(value)
    return parts.without(hidden) if parts and hidden else parts


def items_of(value: Any) -> tuple[Any, ...]:
    """The very items of a container."""
    if not isinstance(value, dict):
        return tuple(value)
    ordered = isinstance(value, collections.OrderedDict)
    base: type[dict[Any, Any]] = collections.OrderedDict if ordered else dict
    return (*base.keys(value), *base.values(value))


def is_wrapper(cls: type) -> bool:
    """Whether it is a container that Keras or TensorFlow makes of a plain one."""
    return classes.top_module(cls) in ("keras", "tensorflow")


@once
def owned_of(cls: type) -> frozenset[str]:
    """Attributes that Keras or a backend keeps in objects of a class, for itself."""
    if issubclass(cls, keras.callbacks.Callback) or classes.is_plain(cls):
        return frozenset()
    return owned_by(cls)


@once
def hidden_of(cls: type) -> frozenset[str]:
    """Attributes of objects of a class that are never state."""
    if issubclass(cls, keras.callbacks.Callback):
        return _OF_CALLBACKS
    return _OF_DATASETS if issubclass(cls, keras.utils.PyDataset) else frozenset()


def _is_of_others(thing: types.FunctionType | type) -> bool:
    return classes.is_others_module(str(thing.__module__))


@once
def way_of(cls: type) -> Callable[[Any], Parts | None] | None:
    """What takes apart objects of a class; None if these are not looked into."""
    for base, way in _BY_TYPE.items():
        if issubclass(cls, base):
            return way
    container = issubclass(cls, _CONTAINERS)
    if container and (is_wrapper(cls) or not cls.__dictoffset__):
        return _of_items
    known = is_keras(cls) or classes.is_plain(cls) or container
    return _of_object if known or issubclass(cls, (*_OPEN, *_followed())) else None


def _followed() -> tuple[type, ...]:
    """Classes of backends, and of their data, whose objects are looked into."""
    found: list[type] = []
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        found += [torch.nn.Module, torch.utils.data.Dataset, torch.utils.data.Sampler]
    if "tensorflow" in sys.modules:
        tf = sys.modules["tensorflow"]
        found += [tf.Module, tf.train.ExponentialMovingAverage]
    return tuple(found)


def _of_cell(cell: types.CellType) -> Parts:
    with contextlib.suppress(ValueError):  # not set yet
        return Parts({"cell_contents": cell.cell_contents})
    return Parts()


def _of_globals(found: Globals) -> Parts:
    names = sorted(found.names & found.values.keys())
    return Parts({name: found.values[name] for name in names})


def _of_items(value: Any) -> Parts:
    return Parts(items=items_of(value))


def _of_object(value: Any) -> Parts:
    """The parts of a plain object, or of one of Keras, of a backend, or derived."""
    cls = type(value)
    hidden, owned = hidden_of(cls), owned_of(cls)
    attributes, muted = dict[str, Any](), dict[str, Any]()
    for name, item in _attributes(value).items():
        if name in hidden:
            continue
        if name not in owned:
            attributes[name] = item
        elif not isinstance(item, keras.callbacks.Callback):  # those of the last fit
            muted[f".{name}"] = item
    container = isinstance(value, _CONTAINERS)
    items = items_of(value) if container else None
    return Parts(_ordered(attributes), items, muted, _users(cls))


@once
def _users(cls: type) -> Mapping[str, type]:
    """The class of an object, if it is the user's."""
    return {} if classes.is_foreign(cls) else {f":{cls.__name__}": cls}


def _attributes(value: Any) -> dict[str, Any]:
    if classes.has_slots(type(value)):
        return classes.attributes(value)
    return dict(getattr(value, "__dict__", {}))


def _ordered(attributes: dict[str, Any]) -> dict[str, Any]:
    """Public names first: they say more in messages."""
    return dict(sorted(attributes.items(), key=lambda pair: pair[0][:1] == "_"))


def _of_class(cls: type) -> Parts | None:
    if _is_of_others(cls):
        return None
    attributes, others = dict[str, Any](), dict[str, Any]()
    for name, item in list(vars(cls).items()):
        if isinstance(item, (types.FunctionType, *_DESCRIPTORS)):
            others[f".{name}"] = _function(item)
        elif _is_data(cls, name, item):
            attributes[name] = item
    users = (base for base in cls.__bases__ if not _is_of_others(base))
    others |= {f":{base.__name__}": base for base in users}
    return Parts(attributes, others=others)


def _is_data(cls: type, name: str, item: Any) -> bool:
    """Whether an attribute of a class holds data that may change."""
    if issubclass(cls, enum.Enum) or name in ("_fields", "_abc_impl"):
        return False
    code = callable(item) or hasattr(type(item), "__get__")
    return classes.is_attribute(name) and not code


def _function(item: Any) -> Any:
    """The function inside a static method, property and the like."""
    if not isinstance(item, _DESCRIPTORS):
        return item
    names = ("__func__", "fget", "func")
    return next((getattr(item, name) for name in names if hasattr(item, name)), None)


def _of_function(function: types.FunctionType) -> Parts | None:
    if _is_of_others(function):
        return None
    names = function.__code__.co_freevars
    cells = zip(names, function.__closure__ or (), strict=True)
    others: dict[str, Any] = {f" remembers {name}": cell for name, cell in cells}
    others["()"] = function.__defaults__ or ()
    if function.__kwdefaults__:
        others["(=)"] = function.__kwdefaults__
    if wrapped := getattr(function, "__wrapped__", None):
        others[".__wrapped__"] = wrapped
    named = vars(function).items()
    own = {name: item for name, item in named if classes.is_attribute(name)}
    return Parts(own, others=others)


_BY_TYPE: dict[type, Callable[[Any], Parts | None]] = {
    types.CellType: _of_cell,
    Globals: _of_globals,
    types.FunctionType: _of_function,
    type: _of_class,
}
