"""Codecs for types that JSON lacks.

A codec turns a value into a list of simpler values, and back into an equal value of the
same type after checking their types. Subclasses are not matched: they could hold more.
"""

import collections
import datetime
import decimal
import fractions
import os
import pathlib
import random
import re
import types
import uuid
import zoneinfo
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from resilient.serialization import rng

Types = tuple[type, ...]

INT_BITS = 1 << 16  # of the longest int: computing with longer ones takes long
_COLLIDING = 1000  # keys of one hash, which are compared with each other

_NONE = type(None)
_ZONE = (_NONE, datetime.timezone, zoneinfo.ZoneInfo)
_INTS = (int, _NONE)
_FACTORIES = (_NONE, type, types.FunctionType, types.BuiltinFunctionType)
_ZONE_NAME = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+){0,3}")


@dataclass(frozen=True)
class Codec:
    """How to take values of a type apart and put them together.

    Attributes:
        tag: The type's tag in JSON.
        type: The type.
        parts: Takes a value apart.
        build: Puts it together; only called with parts of the right types.
        takes: The types that each part may have, exactly; None for any number of any.
        least: The smallest number of parts.
    """

    tag: str
    type: type
    parts: Callable[[Any], list[Any]]
    build: Callable[[list[Any]], Any]
    takes: tuple[Types, ...] | None
    least: int

    def made(self, parts: list[Any]) -> Any:
        """A value of this type.

        Raises:
            ValueError: It has no such parts.
        """
        if self.takes is not None:
            if not self.least <= len(parts) <= len(self.takes):
                raise ValueError(f"{self.tag} with {len(parts)} parts")
            for part, allowed in zip(parts, self.takes, strict=False):
                if type(part) not in allowed and not (
                    type in allowed and isinstance(part, type)
                ):
                    raise ValueError(f"{self.tag} of a {type(part).__name__}")
        return self.build(parts)


def _codec(
    cls: type,
    parts: Callable[[Any], list[Any]],
    build: Callable[[list[Any]], Any],
    *takes: Types,
    least: int | None = None,
) -> Codec:
    return Codec(
        cls.__name__, cls, parts, build, takes, len(takes) if least is None else least
    )


def _by_arguments(
    cls: type,
    names: str,
    *takes: Types,
    build: Callable[[list[Any]], Any] | None = None,
) -> Codec:
    """A type whose constructor takes its own attributes."""
    every = names.split()
    return _codec(
        cls,
        lambda value: [getattr(value, name) for name in every],
        build or (lambda parts: cls(*parts)),
        *takes,
    )


def _by_dict(cls: type) -> Codec:
    """A mapping whose constructor takes a plain one."""
    return _codec(cls, lambda v: [dict(v)], lambda parts: cls(parts[0]), (dict,))


def _by_text(cls: type) -> Codec:
    """A type whose constructor takes its own string form."""
    return _codec(cls, lambda v: [str(v)], lambda parts: cls(parts[0]), (str,))


def _by_items(cls: type) -> Codec:
    """A container whose constructor takes its own items."""
    return Codec(cls.__name__, cls, list, cls, None, 0)


def _by_state(cls: type, new: Callable[[], Any], states: Types = (dict,)) -> Codec:
    """A generator of random numbers; ``new`` makes another one that takes its state."""

    def build(parts: list[Any]) -> Any:
        generator = new()
        rng.set_state(generator, parts[0])
        return generator

    return _codec(cls, lambda value: [rng.state(value)], build, states)


def _random_state(parts: list[Any]) -> Any:
    name = parts[0].get("bit_generator")
    if name not in _BIT_GENERATORS:
        raise ValueError("a random state of an unknown generator")
    generator = np.random.RandomState(_BIT_GENERATORS[name]())
    rng.set_state(generator, parts[0])
    return generator


def distinct(keys: list[Any]) -> list[Any]:
    """The keys of a set or dict, unless hash collisions would take forever.

    Raises:
        ValueError: They were made to have the same hash.
    """
    if len(keys) > _COLLIDING:
        # While the rest alone is checked, None stands for any object of the script's.
        hashes = collections.Counter(hash(key) for key in keys if key is not None)
        if max(hashes.values(), default=0) > _COLLIDING:
            raise ValueError("keys that all have one hash")
    return keys


def _zone(parts: list[Any]) -> zoneinfo.ZoneInfo:
    name = parts[0]
    # One that is not there would be looked for in a package of its name.
    if not _ZONE_NAME.fullmatch(name) or not (
        any(os.path.isfile(os.path.join(root, name)) for root in zoneinfo.TZPATH)
        or name in zoneinfo.available_timezones()
    ):
        raise ValueError("not the name of a time zone")
    return zoneinfo.ZoneInfo(name)


def _with_fold(cls: type) -> Callable[[list[Any]], Any]:
    return lambda parts: cls(*parts[:-1], fold=parts[-1])


_DATE = "year month day"
_TIME = "hour minute second microsecond tzinfo"
_BIT_GENERATORS: dict[str, type] = {
    cls.__name__: cls
    for cls in (
        *(np.random.MT19937, np.random.PCG64, np.random.PCG64DXSM),
        *(np.random.Philox, np.random.SFC64),
    )
}

CODECS: list[Codec] = [
    _by_items(tuple),
    Codec("set", set, list, lambda parts: set(distinct(parts)), None, 0),
    Codec(
        "frozenset", frozenset, list, lambda parts: frozenset(distinct(parts)), None, 0
    ),
    _by_arguments(complex, "real imag", (float,), (float,)),
    Codec(
        "slice",
        slice,
        lambda v: [v.start, v.stop, v.step],
        lambda parts: slice(*parts),
        None,
        0,
    ),
    _by_arguments(range, "start stop step", (int,), (int,), (int,)),
    _by_arguments(fractions.Fraction, "numerator denominator", (int,), (int,)),
    _by_arguments(datetime.timedelta, "days seconds microseconds", *[(int,)] * 3),
    _by_arguments(zoneinfo.ZoneInfo, "key", (str,), build=_zone),
    _by_text(decimal.Decimal),
    _by_text(uuid.UUID),
    *map(_by_text, {pathlib.PurePosixPath, pathlib.PureWindowsPath}),
    _by_text(type(pathlib.Path())),
    _codec(
        bytearray, lambda v: [bytes(v)], lambda parts: bytearray(parts[0]), (bytes,)
    ),
    _by_arguments(datetime.date, _DATE, *[(int,)] * 3),
    _by_arguments(
        datetime.datetime,
        f"{_DATE} {_TIME} fold",
        *([(int,)] * 7),
        *(_ZONE, (int,)),
        build=_with_fold(datetime.datetime),
    ),
    _by_arguments(
        datetime.time,
        f"{_TIME} fold",
        *([(int,)] * 4),
        *(_ZONE, (int,)),
        build=_with_fold(datetime.time),
    ),
    _codec(
        datetime.timezone,
        lambda v: list(v.__getinitargs__()),
        lambda parts: datetime.timezone(*parts),
        *((datetime.timedelta,), (str,)),
        least=1,
    ),
    _codec(
        collections.deque,
        lambda v: [list(v), v.maxlen],
        lambda parts: collections.deque(*parts),
        *((list,), _INTS),
    ),
    _by_dict(collections.OrderedDict),
    _by_dict(collections.Counter),
    _codec(
        collections.defaultdict,
        lambda v: [v.default_factory, dict(v)],
        lambda parts: collections.defaultdict(*parts),
        *(_FACTORIES, (dict,)),
    ),
    _by_state(random.Random, random.Random, (list,)),
    _codec(
        np.random.RandomState,
        lambda value: [rng.state(value)],
        _random_state,
        (dict,),
    ),
    _codec(
        np.random.Generator,
        lambda v: [v.bit_generator],
        lambda parts: np.random.Generator(parts[0]),
        tuple(_BIT_GENERATORS.values()),
    ),
    *(_by_state(cls, cls) for cls in _BIT_GENERATORS.values()),
]
BY_TYPE = {codec.type: codec for codec in CODECS}
BY_TAG = {codec.tag: codec for codec in CODECS}
