"""Codecs of types that JSON lacks.

A codec turns a value into a list of simpler values, and back into an equal value of the
same type. Subclasses are not matched: they could hold more.
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

from resilient.serialization import rng


@dataclass(frozen=True)
class Codec:
    """How to take values of a type apart, and put them together."""

    tag: str
    type: type
    parts: Callable[[Any], list[Any]]
    build: Callable[[list[Any]], Any]


_DATE = ("year", "month", "day")
_TIME = ("hour", "minute", "second", "microsecond", "tzinfo")


def _by_arguments(cls: type, *names: str, last: str = "") -> Codec:
    """A type whose constructor takes its own attributes, the last one by keyword."""
    every = (*names, last) if last else names

    def build(parts: list[Any]) -> Any:
        return cls(*parts[:-1], **{last: parts[-1]}) if last else cls(*parts)

    return Codec(
        cls.__name__, cls, lambda v: [getattr(v, name) for name in every], build
    )


def _by_dict(cls: type) -> Codec:
    """A mapping whose constructor takes a plain one."""
    return Codec(cls.__name__, cls, lambda v: [dict(v)], lambda parts: cls(parts[0]))


def _by_text(cls: type) -> Codec:
    """A type whose constructor takes its own string form."""
    return Codec(cls.__name__, cls, lambda v: [str(v)], lambda parts: cls(parts[0]))


def _by_items(cls: type) -> Codec:
    """A container whose constructor takes its own items."""
    return Codec(cls.__name__, cls, list, cls)


def _by_state(cls: type, new: Callable[[Any], Any]) -> Codec:
    """A generator of random numbers; ``new`` makes another one that takes its state."""

    def build(parts: list[Any]) -> Any:
        generator = new(parts[0])
        rng.set_state(generator, parts[0])
        return generator

    return Codec(cls.__name__, cls, lambda value: [rng.state(value)], build)


def _bit_generator(name: str) -> Any:
    return getattr(np.random, name)()


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
    _by_arguments(datetime.date, *_DATE),
    _by_arguments(datetime.datetime, *_DATE, *_TIME, last="fold"),
    _by_arguments(datetime.time, *_TIME, last="fold"),
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
    _by_dict(collections.OrderedDict),
    _by_dict(collections.Counter),
    Codec(
        "defaultdict",
        collections.defaultdict,
        lambda v: [v.default_factory, dict(v)],
        lambda parts: collections.defaultdict(*parts),
    ),
    _by_state(random.Random, lambda state: random.Random()),
    _by_state(
        np.random.RandomState,
        lambda state: np.random.RandomState(_bit_generator(state["bit_generator"])),
    ),
    Codec(
        "Generator",
        np.random.Generator,
        lambda v: [v.bit_generator],
        lambda parts: np.random.Generator(parts[0]),
    ),
    *(
        _by_state(
            getattr(np.random, name),
            lambda state: _bit_generator(state["state"]["bit_generator"]),
        )
        for name in ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
    ),
]
BY_TYPE = {codec.type: codec for codec in CODECS}
BY_TAG = {codec.tag: codec for codec in CODECS}
