"""The closed table of types that JSON can hold beside its own; ``find_codec`` reads it.

A codec takes a value apart into simpler ones, and puts an equal value of the same type
together once the types of its parts were checked. Subclasses are not matched: they
could hold more. The rows of whole families of types are in ``json_classes``.
"""

import math
import pathlib
import struct
from base64 import b64decode, b64encode
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
from numpy.random import Generator, RandomState

from resilient.serialization import rng

Parts = list[Any]

_EXACT_INT = 2**53  # beyond this some JSON tools round
_INT_BITS = 1 << 16  # of the longest int: computing with longer ones takes long
_COLLIDING = 1000  # keys of one hash, which are compared with each other


class Codec(NamedTuple):
    """How values of a type are taken apart and put together.

    Attributes:
        tag: The type's tag in JSON.
        parts: Takes a value apart; raises ValueError for one that cannot be saved.
        build: Puts it together.
        takes: The types that each part may have, exactly, or none for any; None for any
            number of parts.
        live: Whether ``build`` takes what the script holds as well, and first. A class
            or function among the parts is the first, and becomes its name.
    """

    tag: str
    parts: Callable[[Any], Parts]
    build: Callable[..., Any]
    takes: tuple[tuple[type, ...], ...] | None
    live: bool = False

    def check(self, parts: Parts) -> None:
        """Raise ValueError unless a value can have such parts."""
        if self.takes is None:
            return
        if len(parts) != len(self.takes):
            raise ValueError(f"{self.tag} with {len(parts)} parts")
        for part, allowed in zip(parts, self.takes, strict=True):
            if allowed and type(part) not in allowed:
                raise ValueError(f"{self.tag} of a {type(part).__name__}")


def codec(
    tag: str,
    parts: Callable[[Any], Parts],
    build: Callable[..., Any],
    *takes: type | tuple[type, ...],
    live: bool = False,
) -> Codec:
    """A type with a fixed number of parts."""
    every = tuple(each if isinstance(each, tuple) else (each,) for each in takes)
    return Codec(tag, parts, build, every, live)


def _by(change: Callable[[Any], Any], cls: type, takes: Any) -> Codec:
    """A type whose constructor takes what such a change makes of a value."""
    return codec(cls.__name__, lambda value: [change(value)], cls, takes)


def _by_attributes(cls: Any, names: str, *takes: Any) -> Codec:
    """A type whose constructor takes its own attributes; ``fold`` only by its name."""

    def parts(value: Any) -> Parts:
        return [getattr(value, name) for name in names.split()]

    def with_fold(*parts: Any) -> Any:
        return cls(*parts[:-1], fold=parts[-1])

    build = with_fold if names.endswith("fold") else cls
    return codec(cls.__name__, parts, build, *takes)


def _by_state(cls: type, takes: type, new: Callable[[Any], Any] | None = None) -> Codec:
    """A generator of random numbers; ``new`` makes one that takes a state."""

    def build(state: Any) -> Any:
        generator = new(state) if new else cls()
        rng.set_state(generator, state)
        return generator

    return codec(cls.__name__, lambda value: [rng.state(value)], build, takes)


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:  # JSON would join or refuse lone surrogates
        return False
    return True


def _of_int(value: int) -> Parts:
    if value.bit_length() > _INT_BITS:
        raise ValueError(f"an int of more than {_INT_BITS:,} bits")
    return [hex(value)]


def _to_int(text: str) -> int:
    if len(text) > _INT_BITS // 4 + len("-0x"):
        raise ValueError(f"an int of {len(text):,} digits")
    return int(text, 16)


def _of_float(value: float) -> Parts:
    return [struct.pack("<d", value).hex()]


def _to_float(text: str) -> Any:
    return struct.unpack("<d", bytes.fromhex(text))[0]


def _of_bytes(value: bytes) -> Parts:
    return [b64encode(value).decode("ascii")]


def _to_bytes(text: str) -> bytes:
    return b64decode(text, validate=True)


def _of_str(value: str) -> Parts:
    return _of_bytes(value.encode("utf-32-le", "surrogatepass"))


def _to_str(text: str) -> str:
    return _to_bytes(text).decode("utf-32-le", "surrogatepass")


def _of_zone(value: timezone) -> Parts:
    return [*value.__getinitargs__(), None][:2]  # type: ignore[attr-defined]


def _to_zone(offset: timedelta, name: str | None) -> timezone:
    return timezone(offset) if name is None else timezone(offset, name)


def _distinct(keys: tuple[Any, ...]) -> tuple[Any, ...]:
    """The keys of a set or dict, unless hash collisions would take forever."""
    if len(keys) > _COLLIDING:
        # In an outline, None stands for any object of the script's.
        hashes = Counter(hash(key) for key in keys if key is not None)
        if max(hashes.values(), default=0) > _COLLIDING:
            raise ValueError("keys that all have one hash")
    return keys


def _to_dict(*pairs: Any) -> dict[Any, Any]:
    if not all(type(pair) is list and len(pair) == 2 for pair in pairs):
        raise ValueError("a dict of no pairs")
    _distinct(tuple(key for key, _ in pairs))
    return dict(pairs)


def _of_list(value: list[Any]) -> Parts:
    return [np.array(value, np.int64 if type(value[0]) is int else np.float64)]


def _to_list(packed: np.ndarray) -> Any:
    if packed.ndim != 1 or packed.dtype not in (np.float64, np.int64):
        raise ValueError("a list of no numbers")
    return packed.tolist()


def _of_defaultdict(value: defaultdict[Any, Any]) -> Parts:
    return [value.default_factory, dict(value)]


def _bit_generator(state: Any) -> Any:
    return _BIT_GENERATORS[state["bit_generator"]]()


_NONE, ANY = type(None), ()
_ZONE = (_NONE, timezone)
_DATE, _TIME = "year month day", "hour minute second microsecond tzinfo fold"
_PATHS = (pathlib.PurePosixPath, pathlib.PureWindowsPath, type(pathlib.Path()))
_BIT_GENERATORS: dict[str, type] = {
    name: getattr(np.random, name)
    for name in ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
}

# JSON's own types: which of their values JSON holds exactly, as they are.
PLAIN: dict[type, Callable[[Any], bool]] = {
    _NONE: lambda value: True,
    bool: lambda value: True,
    int: lambda value: abs(value) < _EXACT_INT,
    float: math.isfinite,  # as the shortest text that reads back the same, and -0.0
    str: _is_unicode,
}

BY_TYPE: dict[type, Codec] = {
    int: codec("int", _of_int, _to_int, str),
    float: codec("float", _of_float, _to_float, str),
    str: codec("str", _of_str, _to_str, str),
    bytes: codec("bytes", _of_bytes, _to_bytes, str),
    bytearray: _by(bytes, bytearray, bytes),
    tuple: Codec("tuple", list, lambda *items: items, None),
    set: Codec("set", list, lambda *items: set(_distinct(items)), None),
    frozenset: Codec("frozenset", list, lambda *x: frozenset(_distinct(x)), None),
    complex: _by_attributes(complex, "real imag", float, float),
    slice: _by_attributes(slice, "start stop step", ANY, ANY, ANY),
    range: _by_attributes(range, "start stop step", int, int, int),
    Fraction: _by_attributes(Fraction, "numerator denominator", int, int),
    **{cls: _by(str, cls, str) for cls in (Decimal, UUID, *_PATHS)},
    timedelta: _by_attributes(timedelta, "days seconds microseconds", int, int, int),
    timezone: codec("timezone", _of_zone, _to_zone, timedelta, (str, _NONE)),
    date: _by_attributes(date, _DATE, int, int, int),
    time: _by_attributes(time, _TIME, *[int] * 4, _ZONE, int),
    datetime: _by_attributes(datetime, f"{_DATE} {_TIME}", *[int] * 7, _ZONE, int),
    deque: codec("deque", lambda x: [list(x), x.maxlen], deque, list, (int, _NONE)),
    OrderedDict: _by(dict, OrderedDict, dict),
    Counter: _by(dict, Counter, dict),
    defaultdict: codec("defaultdict", _of_defaultdict, defaultdict, ANY, dict),
    Random: _by_state(Random, list),
    **{cls: _by_state(cls, dict) for cls in _BIT_GENERATORS.values()},
    RandomState: _by_state(RandomState, dict, lambda x: RandomState(_bit_generator(x))),
    Generator: _by(lambda x: x.bit_generator, Generator, (*_BIT_GENERATORS.values(),)),
}
# Of lists and dicts, which the encoder writes by itself.
LIST = codec("list", _of_list, _to_list, np.ndarray)
DICT = Codec("dict", lambda value: list(value.items()), _to_dict, None)
