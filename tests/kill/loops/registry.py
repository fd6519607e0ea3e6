"""What a loop is here: a function that makes a run and says what to compare."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Makes what the loop runs with, of the keyword arguments of `resilient.Run`.
Make = Callable[..., Any]


@dataclass(frozen=True)
class Loop:
    """A named loop.

    Attributes:
        train: Given ``Make``, trains to the end; returns what is compared, by name.
        kills: A schedule of kills: ``step@K`` in the body of that step (or the first
            after it), ``step@K SIGTERM``, ``call@N``, ``after@S``, see ``points``.
        save_freq: As in ``Scenario``.
        plain: Whether a plain Python loop over the same data is the reference.
        in_exact: Whether ``nox -s exact`` kills it or its like: then it is for long
            sessions here.
    """

    name: str
    train: Callable[[Make], dict[str, Any]]
    kills: tuple[str, ...]
    save_freq: Any
    plain: bool
    in_exact: bool


LOOPS: dict[str, Loop] = {}


def loop(
    *kills: str, save_freq: Any = 2, plain: bool = False, in_exact: bool = False
) -> Callable[[Callable[[Make], dict[str, Any]]], Callable[[Make], dict[str, Any]]]:
    """Register the decorated function under its own name."""

    def register(train: Callable[[Make], dict[str, Any]]) -> Any:
        name = train.__name__
        assert name not in LOOPS, name
        LOOPS[name] = Loop(name, train, kills, save_freq, plain, in_exact)
        return train

    return register
