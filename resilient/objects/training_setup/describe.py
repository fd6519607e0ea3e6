"""Describes in JSON how objects were constructed, so that two can be compared.

Numbers and strings are described as they are, arrays by a checksum, functions by name
and code, anything else by its name. The contents of containers and functions are
described separately, see ``held``.
"""

import contextlib
import functools
import inspect
import types
import weakref
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from resilient.objects.content import Scope, digest, read
from resilient.objects.opaque_hash import contents_of_code, tensor_version
from resilient.objects.sizing import Size, sample, tensor_size
from resilient.serialization.json_values import NotEncodable
from resilient.serialization.schema import strict

CONTAINERS = (list, tuple, dict)
ITEMS = 64  # a container with more items, nested ones included, gets one checksum
REMEMBERS = " remembers "  # in the names of facts about functions

# Arguments that do not affect what is computed, are held by variables, or are compared
# elsewhere.
_LEFT_OUT = frozenset(
    {
        *("self", "args", "kwargs", "name", "dtype", "seed", "seed_generator", "build"),
        *("layers", "inputs", "outputs", "input_shape", "batch_shape"),
    }
)
_SETTINGS: "weakref.WeakKeyDictionary[type, tuple[str, ...]]" = (
    weakref.WeakKeyDictionary()
)


def settings_of(cls: type) -> tuple[str, ...]:
    """Names of the constructor arguments of a class."""
    known = _SETTINGS.get(cls)
    if known is not None:
        return known
    names: dict[str, None] = {}
    for base in cls.__mro__:
        init = vars(base).get("__init__")
        if inspect.isfunction(init):
            names.update(dict.fromkeys(inspect.signature(init).parameters))
    # The arguments of the function that a loss or a metric wraps are a setting, too.
    found = tuple(
        name
        for name in (*names, "fn_kwargs")
        if name not in _LEFT_OUT and not name.endswith("_initializer")
    )
    _SETTINGS[cls] = found
    return found


def described(value: Any) -> Any:
    """A value as JSON; for a container only its length."""
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float):
        return strict(float(value))
    if isinstance(value, (int, str)):  # as JSON returns it, also for an enumeration
        return int(value) if isinstance(value, int) else str(value)
    if isinstance(value, CONTAINERS):
        name = f"{type(value).__name__} of {len(value)}"
        plain = dict(value) if isinstance(value, dict) else list(value)
        return f"{name}, checksum {_checksum(plain)}" if is_long(value) else name
    if is_array(value):
        shape = tuple(map(int, value.shape))
        return f"array of {value.dtype} {shape}, checksum {_checksum(value)}"
    return _called(value)


def held(value: Any) -> dict[str, Any]:
    """The contents of a container or function, by the suffix of the name."""
    if isinstance(value, dict):
        return {f"[{key!r}]": item for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return {f"[{index}]": item for index, item in enumerate(value)}
    if isinstance(value, functools.partial):
        return {".func": value.func, ".args": value.args, ".keywords": value.keywords}
    if isinstance(value, types.MethodType):
        value = value.__func__
    if not isinstance(value, types.FunctionType) or _is_keras(value):
        return {}
    found = {f"{REMEMBERS}{name}": item for name, item in _remembered(value)}
    # Functions write to containers, mostly to logs.
    return {k: v for k, v in found.items() if not isinstance(v, (list, dict, set))}


def items(value: Any) -> tuple[Any, ...]:
    """The very objects that ``held`` returns."""
    if isinstance(value, dict):
        return (*value, *value.values())
    return tuple(value) if isinstance(value, list) else tuple(held(value).values())


def is_long(value: Any) -> bool:
    """Whether a container, including nested ones, has too many items to list."""
    found, todo = 0, [value]
    while todo and found <= ITEMS:
        each = todo.pop()
        found += len(each)
        inner = each.values() if isinstance(each, dict) else each
        if found <= ITEMS:
            todo.extend(item for item in inner if isinstance(item, CONTAINERS))
    return found > ITEMS


def is_array(value: Any) -> bool:
    """Whether it is a NumPy array, or a tensor that no step computed."""
    if isinstance(value, np.ndarray):
        return True
    library = type(value).__module__.partition(".")[0]
    if library == "torch" and getattr(value, "grad_fn", None) is not None:
        return False
    if library == "tensorflow":
        import tensorflow as tf

        if tf.is_symbolic_tensor(value):
            return False
    if library in ("jax", "jaxlib"):
        import jax

        if isinstance(value, jax.core.Tracer):
            return False
    return tensor_size(value) is not None


def version(array: Any) -> Any:
    """Changes when the array is written to; None if nothing can write to it."""
    if isinstance(array, np.ndarray):
        return _checksum(array)
    # Not its content, which would make training wait for the device.
    return tensor_version(array) if hasattr(array, "data_ptr") else None


def _checksum(value: Any) -> str | None:
    """A checksum of its content, or of a sample if very large; None if unknown."""
    content = read(value, Scope())
    if content.size is Size.LARGE:
        return sample(value)[:8]
    try:
        return digest(content.plain).mark[:8] if content.size is Size.LIGHT else None
    except NotEncodable:
        return None


def _called(value: Any) -> str:
    name = type(value).__name__
    with contextlib.suppress(Exception):  # the object's own code failed
        name = str(value.__name__)
    functions = (types.FunctionType, types.MethodType)
    if not isinstance(value, functions) or _is_keras(value):
        return name
    code = value.__code__
    return f"{name} {zlib.crc32(repr(contents_of_code(code)).encode()):08x}"


def _remembered(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Names and values in a function's closure and defaults."""
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # not set yet
            yield name, cell.cell_contents
    defaults = function.__defaults__ or ()
    arguments = code.co_varnames[: code.co_argcount]
    yield from zip(arguments[len(arguments) - len(defaults) :], defaults, strict=True)
    yield from (function.__kwdefaults__ or {}).items()


def _is_keras(function: Any) -> bool:
    return str(function.__module__).partition(".")[0] == "keras"
