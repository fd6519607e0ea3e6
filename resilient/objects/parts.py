"""Takes objects apart: what each consists of, and what it only refers to."""

import argparse
import collections
import contextlib
import enum
import functools
import queue
import random
import sys
import threading
import types
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import keras
import numpy as np

from resilient.keras_internals import bookkeeping
from resilient.objects import kinds, leaves
from resilient.serialization import classes
from resilient.serialization.json_types import BY_TYPE
from resilient.state.functions import global_names

_SCALARS = frozenset(
    {type(None), bool, int, float, complex, str, bytes, type(...), slice, range}
)
# Types with a codec that can change.
_MUTABLE = frozenset(
    {set, frozenset, tuple, bytearray, collections.deque, collections.OrderedDict}
    | {collections.Counter, collections.defaultdict, random.Random}
    | {cls for cls in BY_TYPE if cls.__module__.startswith("numpy")}
)
_VALUES = _SCALARS | (BY_TYPE.keys() - _MUTABLE)
# Objects of the standard library that are nothing but their attributes.
_OPEN = (
    *(types.SimpleNamespace, argparse.Namespace, threading.local, queue.Queue),
    *(collections.UserDict, collections.UserList),
)
_DESCRIPTORS = (staticmethod, classmethod, property, functools.cached_property)
# Set by Keras for every fit; the model has its own place in a checkpoint.
_OF_CALLBACKS = frozenset({"model", "_model", "params", "validation_data"})
_OF_DATASETS = frozenset({"_workers", "_use_multiprocessing", "_max_queue_size"})


@dataclass(frozen=True)
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
    others: dict[str, Any] = field(default_factory=dict)

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


def unwrapped(value: Any) -> Any:
    """The dict or tuple inside one of TensorFlow's, which only looks like one."""
    if isinstance(value, dict | tuple) and _package(value) == "tensorflow":
        return getattr(value, "__wrapped__", value)
    return value


def is_value(value: Any) -> bool:
    """Whether it cannot change, and its identity does not matter."""
    return type(value) in _VALUES or isinstance(value, np.generic | np.dtype)


def is_transparent(value: Any) -> bool:
    """Whether it is nothing but what it holds, and cannot change."""
    if isinstance(value, types.BuiltinMethodType):  # such as `draw = rng.random`
        owner = value.__self__
        return owner is not None and not isinstance(owner, types.ModuleType)
    return isinstance(value, tuple | frozenset | functools.partial | types.MethodType)


def inside(value: Any) -> dict[str, Any]:
    """What something transparent holds, by the suffix of the path."""
    if isinstance(value, functools.partial):
        given = {f"({name}=)": item for name, item in value.keywords.items()}
        return {"": value.func, "()": value.args, **given}
    if isinstance(value, types.MethodType):
        return {".__self__": value.__self__, "": value.__func__}
    if isinstance(value, types.BuiltinMethodType):
        return {".__self__": value.__self__}
    if isinstance(value, frozenset):
        return {}
    names = getattr(value, "_fields", None)
    if names is not None and len(names) == len(value):
        return {f".{name}": item for name, item in zip(names, value, strict=True)}
    return {f"[{index}]": item for index, item in enumerate(value)}


def parts_of(value: Any) -> Parts | None:
    """What an object consists of; None for one that is not looked into."""
    cls = type(value)
    if cls is types.CellType:
        with contextlib.suppress(ValueError):  # not set yet
            return Parts({"cell_contents": value.cell_contents})
        return Parts()
    if isinstance(value, Globals):
        names = sorted(value.names & value.values.keys())
        return Parts({name: value.values[name] for name in names})
    if isinstance(value, types.FunctionType):
        return _of_function(value)
    if isinstance(value, type):
        return _of_class(value)
    items = _items(value)
    if items is not None and (is_wrapper(cls) or not hasattr(value, "__dict__")):
        return Parts(items=items)
    if kinds.is_keras(value) or issubclass(cls, _followed()):
        return _of_keras(value, items)
    if classes.is_plain(cls) or isinstance(value, _OPEN) or items is not None:
        attributes = _ordered(classes.attributes(value))
        return Parts(attributes, items, others={f":{cls.__name__}": cls})
    return None


def is_wrapper(cls: type) -> bool:
    """Whether it is a container that Keras or TensorFlow makes of a plain one."""
    return classes.top_module(cls) in ("keras", "tensorflow")


def is_owned(value: Any, name: str) -> bool:
    """Whether an attribute is what Keras or a backend keeps for itself."""
    if isinstance(value, keras.callbacks.Callback) or classes.is_plain(type(value)):
        return False
    return bookkeeping.is_owned(type(value), name)


def hidden_of(value: Any) -> frozenset[str]:
    """Attributes that are never state."""
    if isinstance(value, keras.callbacks.Callback):
        return _OF_CALLBACKS
    return _OF_DATASETS if isinstance(value, keras.utils.PyDataset) else frozenset()


def globals_of(function: types.FunctionType) -> Iterator[tuple[dict[str, Any], str]]:
    """The globals that a function of the user's uses: the mapping and the name."""
    if not classes.is_of_others(function):
        yield from global_names(function)


def _package(value: Any) -> str:
    return classes.top_module(type(value))


def _items(value: Any) -> tuple[Any, ...] | None:
    known = isinstance(value, dict | list | collections.deque)
    return leaves.items_of(value) if known else None


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


def _of_keras(value: Any, items: tuple[Any, ...] | None) -> Parts:
    """The parts of an object of Keras, of a backend, or of a class derived from one."""
    cls, hidden = type(value), hidden_of(value)
    attributes, muted = dict[str, Any](), dict[str, Any]()
    for name, item in classes.attributes(value).items():
        if name in hidden:
            continue
        if not is_owned(value, name):
            attributes[name] = item
        elif not isinstance(item, keras.callbacks.Callback):  # those of the last fit
            muted[f".{name}"] = item
    others = {} if classes.is_foreign(cls) else {f":{cls.__name__}": cls}
    return Parts(_ordered(attributes), items, muted, others)


def _ordered(attributes: dict[str, Any]) -> dict[str, Any]:
    """Public names first: they say more in messages."""
    return dict(sorted(attributes.items(), key=lambda pair: pair[0][:1] == "_"))


def _of_class(cls: type) -> Parts | None:
    if classes.is_of_others(cls):
        return None
    attributes, others = dict[str, Any](), dict[str, Any]()
    for name, item in list(vars(cls).items()):
        if isinstance(item, (types.FunctionType, *_DESCRIPTORS)):
            others[f".{name}"] = _function(item)
        elif _is_data(cls, name, item):
            attributes[name] = item
    users = (base for base in cls.__bases__ if not classes.is_of_others(base))
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
    if classes.is_of_others(function):
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
