"""Answers once for each class, or for some code, what depends on nothing else."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

_all: list[Any] = []


def once(function: F) -> F:
    """Remember what a function answers about a class, or about code."""
    _all.append(functools.cache(function))
    return cast("F", _all[-1])


def forget() -> None:
    """Keep no class of a script alive, nor what its methods refer to."""
    for each in _all:
        each.cache_clear()
