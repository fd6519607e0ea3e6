"""Types that JSON values are made of besides JSON's own: how each is taken apart.

A codec turns a value into a list of simpler values, and such a list into an equal value
of the same type. Exactly that type: a subclass could carry more, so it is not matched.
"""

import collections
import datetime
import decimal
import fractions
import pathlib
import random
import uuid
import zoneinfo
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Codec:
    """How values of one type come apart and together again."""

    tag: str
    type: type
    parts: Callable[[Any], list[Any]]
    build: Callable[[list[Any]], Any]


def _date(value: Any) -> list[Any]:
    return [value.year, value.month, value.day]


def _time(value: Any) -> list[Any]:
    return [value.hour, value.minute, value.second, value.microsecond, value.tzinfo]


def _bit_generator(value: Any) -> list[Any]:
    seeds = value.seed_seq
    origin = None
    if type(seeds) is np.random.SeedSequence:  # it counts the children it spawned
        key, pool = seeds.spawn_key, seeds.pool_size
        origin = [seeds.entropy, key, pool, seeds.n_children_spawned]
    return [type(value).__name__, origin, value.state]


def _build_bit_generator(parts: list[Any]) -> Any:
    name, origin, state = parts
    seeds = None
    if origin is not None:
        entropy, key, pool, children = origin
        seeds = np.random.SeedSequence(
            entropy, spawn_key=key, pool_size=pool, n_children_spawned=children
        )
    built = getattr(np.random, name)(seeds)
    built.state = state
    return built


def _build_random_state(parts: list[Any]) -> np.random.RandomState:
    built = np.random.RandomState(getattr(np.random, parts[0]["bit_generator"])())
    built.set_state(parts[0])
    return built


def _build_random(parts: list[Any]) -> random.Random:
    built = random.Random()
    built.setstate(parts[0])
    return built


def _by_arguments(cls: type, *names: str) -> Codec:
    """A type whose constructor takes its own attributes."""
    return Codec(
        cls.__name__,
        cls,
        lambda value: [getattr(value, name) for name in names],
        lambda parts: cls(*parts),
    )


def _by_text(cls: type) -> Codec:
    """A type whose constructor takes its own string form."""
    return Codec(cls.__name__, cls, lambda v: [str(v)], lambda parts: cls(parts[0]))


def _by_items(cls: type) -> Codec:
    """A container whose constructor takes its own items."""
    return Codec(cls.__name__, cls, list, cls)


_BIT_GENERATORS = [
    getattr(np.random, name)
    for name in ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
]

CODECS: list[Codec] = [
    _by_items(tuple),
    _by_items(set),
    _by_items(frozenset),
    _by_arguments(complex, "real", "imag"),
    _by_arguments(slice, "start", "stop", "step"),
    _by_arguments(range, "start", "stop", "step"),
    _by_arguments(fractions.Fraction, "numerator", "denominator"),
    _by_arguments(datetime.timedelta, "days", "seconds", "microseconds"),
    _by_arguments(zoneinfo.ZoneInfo, "key"),
    _by_text(decimal.Decimal),
    _by_text(uuid.UUID),
    *map(_by_text, {pathlib.PurePosixPath, pathlib.PureWindowsPath}),
    _by_text(type(pathlib.Path())),
    Codec("bytearray", bytearray, lambda v: [bytes(v)], lambda p: bytearray(p[0])),
    Codec("date", datetime.date, _date, lambda parts: datetime.date(*parts)),
    Codec(
        "datetime",
        datetime.datetime,
        lambda v: [*_date(v), *_time(v), v.fold],
        lambda p: datetime.datetime(*p[:-1], fold=p[-1]),
    ),
    Codec(
        "time",
        datetime.time,
        lambda v: [*_time(v), v.fold],
        lambda p: datetime.time(*p[:-1], fold=p[-1]),
    ),
    Codec(
        "timezone",
        datetime.timezone,
        lambda v: list(v.__getinitargs__()),
        lambda parts: datetime.timezone(*parts),
    ),
    Codec(
        "deque",
        collections.deque,
        lambda v: [list(v), v.maxlen],
        lambda parts: collections.deque(*parts),
    ),
    Codec(
        "OrderedDict",
        collections.OrderedDict,
        lambda v: [dict(v)],
        lambda parts: collections.OrderedDict(parts[0]),
    ),
    Codec(
        "Counter",
        collections.Counter,
        lambda v: [dict(v)],
        lambda parts: collections.Counter(parts[0]),
    ),
    Codec(
        "defaultdict",
        collections.defaultdict,
        lambda v: [v.default_factory, dict(v)],
        lambda parts: collections.defaultdict(*parts),
    ),
    Codec("Random", random.Random, lambda v: [v.getstate()], _build_random),
    Codec(
        "RandomState",
        np.random.RandomState,
        lambda v: [v.get_state(legacy=False)],
        _build_random_state,
    ),
    Codec(
        "Generator",
        np.random.Generator,
        lambda v: [v.bit_generator],
        lambda parts: np.random.Generator(parts[0]),
    ),
    *(
        Codec(cls.__name__, cls, _bit_generator, _build_bit_generator)
        for cls in _BIT_GENERATORS
    ),
]
BY_TYPE = {codec.type: codec for codec in CODECS}
BY_TAG = {codec.tag: codec for codec in CODECS}
