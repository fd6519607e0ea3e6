"""Takes apart and rebuilds objects of user-defined plain classes.

A class is plain if its instances are nothing but their attributes: neither it nor a
base of it belongs to the standard library, Keras, a backend or NumPy. From other
installed libraries only dataclasses are plain: other objects may stand for connections,
displays or processes, which another process's attributes would break. Classes and
functions without a dotted name, such as local ones and lambdas, have no ``reference``.
Nothing here looks up an object by name: see ``known``.
"""

import contextlib
import dataclasses
import functools
import operator
import sys
import types
from pathlib import Path
from typing import Any

# Libraries whose objects have state that attributes do not show.
_FOREIGN = frozenset(
    {"keras", "tensorflow", "tensorboard", "jax", "jaxlib", "flax", "torch", "numpy"}
    | {"ml_dtypes", "scipy", "pandas", "sklearn", "orbax", "grain", "h5py", "google"}
    | {"resilient"}
)
_MADE_IN_PYTHON = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_TRANSPARENT = frozenset({"object", "ABC", "Generic", "Protocol"})


def top_module(cls: type) -> str:
    """The package of a class."""
    return str(getattr(cls, "__module__", "")).partition(".")[0]


def is_plain(cls: type) -> bool:
    """Whether instances of ``cls`` are nothing but their attributes."""
    if issubclass(cls, type) or vars(object)["__new__"] is not cls.__new__:
        return False
    bases = _bases(cls)
    if not bases or any(map(is_foreign, bases)):
        return False
    return dataclasses.is_dataclass(cls) or not any(map(_is_installed, bases))


def is_foreign(cls: type) -> bool:
    """Whether the class is the standard library's, Keras's or a backend's."""
    module = top_module(cls)
    return module in sys.stdlib_module_names or module in _FOREIGN


def is_of_library(cls: type) -> bool:
    """Whether it is, or derives from, a class of another installed library."""
    bases = _bases(cls)
    return any(map(_is_installed, bases)) and not any(map(is_foreign, bases))


def _bases(cls: type) -> list[type]:
    return [base for base in cls.__mro__ if base.__name__ not in _TRANSPARENT]


def _is_installed(cls: type) -> bool:
    """Whether the class belongs to a library rather than to user code."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None) or ""
    return not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)


def attributes(value: object) -> dict[str, Any]:
    """All instance attributes, including those in ``__slots__``."""
    found: dict[str, Any] = dict(getattr(value, "__dict__", {}))
    cls: Any = type(value)
    for name, member in _slots(cls):
        with contextlib.suppress(AttributeError):  # a slot without a value
            found.setdefault(name, member.__get__(value))
    return found


@functools.cache
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


def rebuild(cls: type, state: dict[str, Any]) -> Any:
    """A new instance of a plain class with these attributes, without ``__init__``.

    Raises:
        ValueError: The class is not plain, or they would change more than its data.
    """
    if not isinstance(cls, type) or not is_plain(cls):
        raise ValueError(f"{cls!r} is not a plain class")
    if bad := [name for name in state if not is_attribute(name)]:
        raise ValueError(f"{bad[0]!r} is not the name of an attribute")
    value: Any = object.__new__(cls)
    set_attributes(value, state)
    return value


def set_attributes(value: object, state: dict[str, Any]) -> None:
    """Make ``state`` the attributes of ``value``, frozen dataclasses included."""
    for name in attributes(value):
        if name not in state:
            object.__delattr__(value, name)
    for name, part in state.items():
        object.__setattr__(value, name, part)


def is_attribute(name: object) -> bool:
    """Whether it can name a data attribute, unlike ``__class__``."""
    return isinstance(name, str) and not (name.startswith("__") and name.endswith("__"))
