"""The rows of the table of types for families of types, and for the script's own.

Classes and functions come from ``Known`` alone; what does not fit is refused with
``ValueError``.
"""

import enum
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from resilient.serialization import classes, json_arrays
from resilient.serialization.classes import Known, NotKnownError
from resilient.serialization.json_types import (
    ANY,
    BY_TYPE,
    DICT,
    LIST,
    Codec,
    Parts,
    codec,
)


def _of_objects(value: np.ndarray) -> Parts:
    if value.dtype != object:
        raise ValueError(f"dtype {value.dtype}")
    return [list(value.shape), value.ravel().tolist()]


def _to_objects(shape: Parts, items: Parts) -> np.ndarray:
    built = np.fromiter(items, object, len(items))
    return built.reshape(json_arrays.checked_shape(shape))


def _of_dtype(value: np.dtype[Any]) -> Parts:
    return [json_arrays.encode_dtype(value)]


def _of_scalar(value: np.generic) -> Parts:
    return [np.asarray(value)]


def _to_scalar(array: np.ndarray) -> Any:
    if array.ndim:
        raise ValueError("a scalar with dimensions")
    return array[()]


def _of_enum(value: enum.Enum) -> Parts:
    return [type(value), value._value_]


def _to_enum(known: Known, name: str, value: Any) -> Any:
    cls = known.named(name)
    if not isinstance(cls, type) or not issubclass(cls, enum.Enum):
        raise ValueError(f"{name} is not an enumeration")
    if issubclass(cls, enum.Flag) and type(value) is int and not _has_missing(cls):
        return cls(value)  # members may be combined
    for member in cls.__members__.values():
        if type(member._value_) is type(value) and member._value_ == value:
            return member
    raise NotKnownError(f"a member of {name} of value {value!r}")


def _has_missing(cls: type) -> bool:
    """Whether user code would create a member for an unknown value."""
    users = (base for base in cls.__mro__ if base.__module__ != "enum")
    return any("_missing_" in vars(base) for base in users)


def _is_namedtuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def _of_namedtuple(value: tuple[Any, ...]) -> Parts:
    return [type(value), list(value)]


def _to_namedtuple(known: Known, name: str, items: Parts) -> Any:
    cls = known.named(name)
    fields = getattr(cls, "_fields", None)
    if not isinstance(cls, type) or not issubclass(cls, tuple) or fields is None:
        raise ValueError(f"{name} is not a named tuple")
    if len(items) != len(fields):
        raise NotKnownError(f"{name} with {len(items)} fields")
    return tuple.__new__(cls, items)


def _of_object(value: object) -> Parts:
    return [type(value), classes.attributes(value)]


def _to_object(known: Known, name: str, state: dict[str, Any]) -> Any:
    return classes.rebuild(known.named(name), state)


def _is_tensor(value: Any) -> bool:
    keras = sys.modules.get("keras")  # a variable is more than its tensor
    return bool(keras and keras.ops.is_tensor(value) and not hasattr(value, "assign"))


def _of_tensor(value: Any) -> Parts:
    keras = sys.modules["keras"]
    try:
        with warnings.catch_warnings():
            # Keras's own, of tensors of torch under numpy 2.4.
            warnings.simplefilter("ignore", DeprecationWarning)
            array = np.asarray(keras.ops.convert_to_numpy(value))
    except Exception as error:  # symbolic tensors, PRNG keys: each backend its own
        raise ValueError from error
    return [keras.backend.standardize_dtype(value.dtype), array]


def _to_tensor(known: Known, dtype: str, array: np.ndarray) -> Any:
    keras = sys.modules.get("keras")
    if keras is None:
        raise LookupError("a tensor cannot be decoded before Keras is imported")
    standard = keras.backend.standardize_dtype(dtype)
    return keras.ops.convert_to_tensor(array, dtype=standard)


def _is(cls: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, cls)


_OBJECTS = codec("objects", _of_objects, _to_objects, list, list)
_SCALAR = codec("scalar", _of_scalar, _to_scalar, np.ndarray)
_DTYPE = codec("dtype", _of_dtype, json_arrays.decode_dtype, str)
_ENUM = codec("enum", _of_enum, _to_enum, str, ANY, live=True)
_TUPLE = codec("namedtuple", _of_namedtuple, _to_namedtuple, str, list, live=True)
_IMPORT = codec("import", lambda value: [value], Known.named, str, live=True)
_OBJECT = codec("object", _of_object, _to_object, str, dict, live=True)
TENSOR = codec("tensor", _of_tensor, _to_tensor, str, np.ndarray, live=True)

# In this order: whether a value is of the family.
_FAMILIES: tuple[tuple[Callable[[Any], bool], Codec], ...] = (
    (lambda value: type(value) is np.ndarray, _OBJECTS),
    (_is(np.generic), _SCALAR),
    (_is(np.dtype), _DTYPE),
    (_is(enum.Enum), _ENUM),
    (_is_namedtuple, _TUPLE),
    (lambda value: classes.reference(value) is not None, _IMPORT),
    (lambda value: classes.is_plain(type(value)), _OBJECT),
    (_is_tensor, TENSOR),
)
_ALL = (*BY_TYPE.values(), *(row for _, row in _FAMILIES), LIST, DICT)
BY_TAG = {row.tag: row for row in _ALL}


def find_codec(value: Any) -> Codec | None:
    """The codec of a value; None for one that cannot be saved."""
    found = BY_TYPE.get(type(value))
    return found or next((row for fits, row in _FAMILIES if fits(value)), None)
