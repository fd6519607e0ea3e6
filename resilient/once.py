"""Answers once for each class, or for some code, what depends on nothing else."""

from collections.abc import Callable
from types import CodeType
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


class _Answers(dict[Any, Any]):
    """What a function answers, by its argument."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        _all.append(self)

    def __missing__(self, key: Any) -> Any:
        self[key] = answer = self._function(key)
        return answer


_all: list[_Answers] = []


def once(function: F) -> F:
    """Remember what a function answers about a class, or about code."""
    return cast("F", _Answers(function).__getitem__)  # which is not Python code


def forget(is_kept: Callable[[type], bool]) -> None:
    """Keep no class of a script alive, nor what its methods refer to."""
    for answers in _all:
        for key in list(answers):
            if isinstance(key, CodeType) or not is_kept(key):
                answers.pop(key, None)
