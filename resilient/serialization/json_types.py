"""The closed table of types that JSON can hold beside its own; ``find_codec`` reads it.

A codec reduces a value to a simpler one, and builds an equal value of the same type
from that. Subclasses of a type are not matched: they could hold more.
"""

import enum
import pathlib
import struct
import sys
import warnings
from base64 import b64decode, b64encode
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from operator import attrgetter, methodcaller
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
from numpy.random import Generator, RandomState

from resilient.serialization import classes, json_arrays, rng
from resilient.serialization.classes import NotKnownError


class Codec(NamedTuple):
    """How values of a type are reduced and built.

    Attributes:
        tag: The type's tag in JSON.
        reduce: Makes a simpler value, or a tuple of parts; raises ValueError for a
            value that cannot be saved.
        build: Makes the value of that, with a list for a tuple; of a class of the
            script's, it gets that first.
        of_class: Whether the class is one of the script's, and its name is saved too.
    """

    tag: str
    reduce: Callable[[Any], Any]
    build: Callable[..., Any]
    of_class: bool = False


def _by(change: Callable[[Any], Any], cls: type) -> Codec:
    """A type whose constructor takes what such a change makes of a value."""
    return Codec(cls.__name__, change, cls)


def _by_attributes(cls: Any, *names: str) -> Codec:
    """A type whose constructor takes its own attributes; ``fold`` only by its name."""

    def build(parts: Any) -> Any:
        if names[-1] == "fold":
            return cls(*parts[:-1], fold=parts[-1])
        return cls(*parts)

    return Codec(cls.__name__, attrgetter(*names), build)


def _by_state(cls: type, new: Callable[[Any], Any] | None = None) -> Codec:
    """A generator of random numbers; ``new`` makes one that takes a state."""

    def build(state: Any) -> Any:
        generator = new(state) if new else cls()
        rng.set_state(generator, state)
        return generator

    return Codec(cls.__name__, rng.state, build)


def _of_bytes(value: bytes) -> str:
    return b64encode(value).decode("ascii")


def _of_float(value: float) -> str:
    return struct.pack("<d", value).hex()


def _to_float(text: str) -> Any:
    return struct.unpack("<d", bytes.fromhex(text))[0]


def _of_list(value: list[Any]) -> np.ndarray:
    return np.array(value, np.int64 if type(value[0]) is int else np.float64)


def _of_objects(value: np.ndarray) -> tuple[Any, ...]:
    if value.dtype != object:
        raise ValueError(f"dtype {value.dtype}")
    return list(value.shape), value.ravel().tolist()


def _to_objects(parts: Any) -> np.ndarray:
    shape, items = parts
    return np.fromiter(items, object, len(items)).reshape(shape)


def _to_enum(cls: Any, parts: Any) -> Any:
    (value,) = parts
    users = (vars(base) for base in cls.__mro__ if base.__module__ != "enum")
    if issubclass(cls, enum.Flag) and not any("_missing_" in x for x in users):
        return cls(value)  # members may be combined
    for member in cls.__members__.values():
        if type(member._value_) is type(value) and member._value_ == value:
            return member
    raise NotKnownError(f"a member of {cls.__name__} of value {value!r}")


def _is_namedtuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def _to_namedtuple(cls: Any, items: list[Any]) -> Any:
    if len(items) != len(cls._fields):
        raise NotKnownError(f"{cls.__name__} with {len(items)} fields")
    return tuple.__new__(cls, items)


def _is_tensor(value: Any) -> bool:
    keras = sys.modules.get("keras")  # a variable is more than its tensor
    return bool(keras and keras.ops.is_tensor(value) and not hasattr(value, "assign"))


def _of_tensor(value: Any) -> tuple[str, np.ndarray]:
    keras = sys.modules["keras"]
    try:
        with warnings.catch_warnings():
            # Keras's own, of tensors of torch under numpy 2.4.
            warnings.simplefilter("ignore", DeprecationWarning)
            array = np.asarray(keras.ops.convert_to_numpy(value))
    except Exception as error:  # symbolic tensors, PRNG keys: each backend its own
        raise ValueError from error
    return keras.backend.standardize_dtype(value.dtype), array


def _to_tensor(parts: Any) -> Any:
    dtype, array = parts
    return sys.modules["keras"].ops.convert_to_tensor(array, dtype=dtype)


def _is(cls: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, cls)


_DATE = ("year", "month", "day")
_TIME = ("hour", "minute", "second", "microsecond", "tzinfo", "fold")
_PATHS = (pathlib.PurePosixPath, pathlib.PureWindowsPath, type(pathlib.Path()))
_BIT_GENERATORS: dict[str, type] = {
    name: getattr(np.random, name)
    for name in ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
}

BY_TYPE: dict[type, Codec] = {
    int: Codec("int", hex, lambda text: int(text, 16)),
    float: Codec("float", _of_float, _to_float),
    str: Codec(
        "str",
        lambda value: value.encode("utf-8", "surrogatepass"),
        lambda raw: raw.decode("utf-8", "surrogatepass"),
    ),
    bytes: Codec("bytes", _of_bytes, b64decode),
    **{cls: _by(list, cls) for cls in (tuple, set, frozenset)},
    bytearray: _by(bytes, bytearray),
    complex: _by_attributes(complex, "real", "imag"),
    slice: _by_attributes(slice, "start", "stop", "step"),
    range: _by_attributes(range, "start", "stop", "step"),
    Fraction: _by_attributes(Fraction, "numerator", "denominator"),
    **{cls: _by(str, cls) for cls in (Decimal, UUID, *_PATHS)},
    timedelta: _by_attributes(timedelta, "days", "seconds", "microseconds"),
    timezone: Codec(
        "timezone", methodcaller("__getinitargs__"), lambda x: timezone(*x)
    ),
    date: _by_attributes(date, *_DATE),
    time: _by_attributes(time, *_TIME),
    datetime: _by_attributes(datetime, *_DATE, *_TIME),
    deque: Codec("deque", lambda x: (list(x), x.maxlen), lambda x: deque(*x)),
    OrderedDict: _by(dict, OrderedDict),
    Counter: _by(dict, Counter),
    defaultdict: Codec(
        "defaultdict",
        lambda x: (x.default_factory, dict(x)),
        lambda x: defaultdict(*x),
    ),
    Random: _by_state(Random),
    **{cls: _by_state(cls) for cls in _BIT_GENERATORS.values()},
    RandomState: _by_state(
        RandomState, lambda x: RandomState(_BIT_GENERATORS[x["bit_generator"]]())
    ),
    Generator: _by(lambda x: x.bit_generator, Generator),
}
# Of lists and dicts, which the encoder reduces by itself.
LIST = Codec("list", _of_list, np.ndarray.tolist)
DICT = Codec("dict", dict.items, dict)
TENSOR = Codec("tensor", _of_tensor, _to_tensor)

# In this order: whether a value is of the family.
_FAMILIES: tuple[tuple[Callable[[Any], bool], Codec], ...] = (
    (lambda x: type(x) is np.ndarray, Codec("objects", _of_objects, _to_objects)),
    (_is(np.generic), Codec("scalar", np.asarray, lambda array: array[()])),
    (
        _is(np.dtype),
        Codec("dtype", json_arrays.encode_dtype, json_arrays.decode_dtype),
    ),
    (_is(enum.Enum), Codec("enum", lambda x: (x._value_,), _to_enum, True)),
    (_is_namedtuple, Codec("namedtuple", list, _to_namedtuple, True)),
    (
        lambda x: classes.is_plain(type(x)),
        Codec("object", classes.attributes, classes.rebuild, True),
    ),
    (_is_tensor, TENSOR),
)
BY_TAG = {
    codec.tag: codec
    for codec in (*BY_TYPE.values(), *(codec for _, codec in _FAMILIES), LIST, DICT)
}


def find_codec(value: Any) -> Codec | None:
    """The codec of a value of a family; None for one that cannot be saved."""
    return next((row for fits, row in _FAMILIES if fits(value)), None)
