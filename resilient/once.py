"""Answers once for each class, name or code what depends on nothing else."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

_caches: list[Any] = []


def once(function: F) -> F:
    """Remember what a function answers, which depends on its arguments alone."""
    _caches.append(functools.lru_cache(4096)(function))
    return cast("F", _caches[-1])


def forget() -> None:
    """Keep no class of a script alive, nor what its methods refer to."""
    for each in _caches:
        each.cache_clear()
