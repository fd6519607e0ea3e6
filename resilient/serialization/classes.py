"""Decides which classes and functions a value may refer to, and which are plain.

A class is plain if its instances are nothing but their attributes: neither it nor a
base of it belongs to the standard library, Keras, a backend or NumPy. From other
installed libraries only dataclasses are plain: other objects may stand for connections,
displays or processes, which another process's attributes would break. Classes and
functions without a dotted name, such as local ones and lambdas, have no ``reference``.

A checkpoint holds names of classes and functions, and no name in it is ever looked up
in modules. A name only selects among what a place held when training began (an
attribute of a callback, the state of an object), the built-in types below, and what the
script has put into ``keras.saving.get_custom_objects()``. Anything else cannot be
encoded there either: a value is either restored, or reported as lost beforehand.
"""

import collections
import contextlib
import dataclasses
import functools
import operator
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np

from resilient.errors import CheckpointMismatchError
from resilient.once import once

# Libraries whose objects have state that attributes do not show.
_FOREIGN = frozenset(
    {"keras", "tensorflow", "tensorboard", "jax", "jaxlib", "flax", "torch", "numpy"}
    | {"ml_dtypes", "scipy", "pandas", "sklearn", "orbax", "grain", "h5py", "google"}
    | {"resilient"}
)
_MADE_IN_PYTHON = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_TRANSPARENT = frozenset({"object", "ABC", "Generic", "Protocol"})


@once
def top_module(cls: type) -> str:
    """The package of a class."""
    return _module(cls).partition(".")[0]


@once
def is_plain(cls: type) -> bool:
    """Whether instances of ``cls`` are nothing but their attributes."""
    if issubclass(cls, type) or vars(object)["__new__"] is not cls.__new__:
        return False
    found = bases(cls)
    if not found or any(map(is_foreign, found)):
        return False
    return dataclasses.is_dataclass(cls) or not any(map(_is_installed, found))


def is_foreign(cls: Any) -> bool:
    """Whether a class or function is the standard library's, Keras's or a backend's."""
    return _is_foreign(_module(cls))


@once
def is_of_library(cls: type) -> bool:
    """Whether it is, or derives from, a class of another installed library."""
    found = bases(cls)
    return any(map(_is_installed, found)) and not any(map(is_foreign, found))


def bases(cls: type) -> list[type]:
    """The class and its bases, without those that add nothing."""
    return [
        base
        for base in cls.__mro__
        if base.__name__ not in _TRANSPARENT and base.__module__ != "collections.abc"
    ]


def _is_installed(cls: type) -> bool:
    return _is_library(_module(cls))


def is_of_others(thing: Any) -> bool:
    """Whether a class or function is of the standard library or any other library."""
    return is_others_module(_module(thing))


@functools.lru_cache(4096)
def is_others_module(name: str) -> bool:
    """Whether the module of this name is of the standard or any other library."""
    return _is_foreign(name) or _is_library(name)


def _module(thing: Any) -> str:
    return str(getattr(thing, "__module__", ""))


def _is_foreign(module: str) -> bool:
    top = module.partition(".")[0]
    return top in sys.stdlib_module_names or top in _FOREIGN


@functools.lru_cache(4096)
def _is_library(module: str) -> bool:
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)


def attributes(value: object) -> dict[str, Any]:
    """All instance attributes, including those in ``__slots__``."""
    found: dict[str, Any] = dict(getattr(value, "__dict__", {}))
    cls: Any = type(value)
    for name, member in _slots(cls):
        with contextlib.suppress(AttributeError):  # a slot without a value
            found.setdefault(name, member.__get__(value))
    return found


@once
def has_slots(cls: type) -> bool:
    """Whether instances have attributes outside their ``__dict__``."""
    return bool(_slots(cls))


@once
def _slots(cls: type) -> list[tuple[str, types.MemberDescriptorType]]:
    return [
        (name, member)
        for base in cls.__mro__
        if base.__flags__ & _MADE_IN_PYTHON  # others show what is inside, as globals
        for name, member in vars(base).items()
        if isinstance(member, types.MemberDescriptorType)
    ]


def reference(value: Any) -> str | None:
    """``"module:qualified.name"`` of a function or class, if that leads back to it."""
    if not callable(value):
        return None
    try:
        module = value.__module__ if hasattr(value, "__module__") else None
        if module is None and type(value).__module__.startswith("numpy"):
            module = "numpy"  # its ufuncs do not name their module
        name = getattr(value, "__qualname__", None) or value.__name__
        leads_to = operator.attrgetter(name)(sys.modules[str(module)])
        return f"{module}:{name}" if leads_to is value else None
    except Exception:  # callable objects may have any attribute of any type
        return None


def rebuild(cls: Any, state: dict[str, Any]) -> Any:
    """A new instance of a plain class with these attributes, without ``__init__``.

    Raises:
        ValueError: The class is not plain, or they would change more than its data.
    """
    if not isinstance(cls, type) or not is_plain(cls):
        raise ValueError(f"{cls!r} is not a plain class")
    if bad := [name for name in state if not is_attribute(name)]:
        raise ValueError(f"{bad[0]!r} is not the name of an attribute")
    value: Any = object.__new__(cls)
    for name, part in state.items():
        object.__setattr__(value, name, part)  # of frozen dataclasses, too
    return value


@functools.lru_cache(4096)
def is_attribute(name: object) -> bool:
    """Whether it can name a data attribute, unlike ``__class__``."""
    return isinstance(name, str) and not (name.startswith("__") and name.endswith("__"))


_TYPES = (
    *(bool, int, float, complex, str, bytes, bytearray, object),
    *(list, tuple, dict, set, frozenset, slice, range),
    *(collections.OrderedDict, collections.Counter, collections.deque),
    *(collections.defaultdict, np.ndarray),
    *{cls for cls in np.sctypeDict.values() if cls is not np.object_},
)
_UFUNCS = [value for value in vars(np).values() if isinstance(value, np.ufunc)]
_BUILT_IN = {reference(each): each for each in (*_TYPES, *_UFUNCS)}


class NotKnownError(CheckpointMismatchError, LookupError):
    """A value refers to a class or function that the script does not hold there."""

    def __init__(self, name: object) -> None:
        super().__init__(
            "The checkpoint refers to a class or function that this script does not "
            "have in the same place.",
            received=str(name)[:200],
            hint="Run the script that saved it, or put the class or function into "
            "keras.saving.get_custom_objects(), under any name.",
        )


class Known:
    """What one place may refer to, by name.

    It learns from what is encoded until it is closed.
    """

    def __init__(self) -> None:
        self._objects: dict[str, Any] = {}
        self._closed = False

    def add(self, value: Any) -> None:
        """Admit a class or function, if it has a name that leads to it."""
        name = reference(value)
        if name is not None:
            self._objects[name] = value

    def close(self) -> "Known":
        """From now on, refuse anything not met so far."""
        self._closed = True
        return self

    def admits(self, name: str, value: Any) -> bool:
        """Whether a value to be encoded may have this class, or be this function."""
        if not self._closed:
            self._objects[name] = value
        return self.get(name) is value

    def named(self, name: object) -> Any:
        """The class or function of this name.

        Raises:
            NotKnownError: There is none.
        """
        found = self.get(name) if isinstance(name, str) else None
        if found is None:
            raise NotKnownError(name)
        return found

    def get(self, name: str) -> Any:
        """The class or function of this name, if any."""
        if name in self._objects:
            return self._objects[name]
        return _BUILT_IN[name] if name in _BUILT_IN else _of_keras().get(name)


NOTHING = Known().close()


def is_of_all(value: Any) -> bool:
    """Whether every place may refer to this class or function."""
    name = reference(value)
    return name is not None and NOTHING.get(name) is value


def _of_keras() -> dict[str | None, Any]:
    """Registered objects, and those that Keras's callbacks compare with."""
    keras = sys.modules.get("keras")
    if keras is None:
        return {}
    custom = keras.saving.get_custom_objects().values()
    found = (keras.ops.less, keras.ops.greater, *custom)
    return {reference(value): value for value in found}
