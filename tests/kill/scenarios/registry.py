"""What a scenario is: a function that builds a model, its data and its callbacks."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from support import BACKENDS


@dataclass
class Case:
    """One ``fit`` about to be called.

    Attributes:
        model: A compiled model.
        args: Positional arguments of ``fit``.
        kwargs: Its keyword arguments, without callbacks.
        callbacks: The user's callbacks, without the harness's own.
        recorded: Whether a callback that sees every batch is added.
        clocks: Attributes of callbacks that hold the time of day.
    """

    model: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    callbacks: list[Any] = field(default_factory=list)
    recorded: bool = True
    clocks: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Scenario:
    """A named case.

    Attributes:
        build: Makes the case, in the attempt's process, after seeding.
        backends: Where Keras can run it.
        kills: One schedule of kills that hurts this scenario, see ``points``.
        save_freq: JSON of the ``save_freq`` to use, see ``attempt.policy``.
        source: Whether it is about a source of data that is not arrays.
        keeps_seed: Whether every attempt must be seeded alike, since the data itself
            draws from what the script seeds and can only be replayed.
        in_keras: Whether Keras's own ``fit`` takes this data.
        slow: Backends on which it is for long sessions only; all of them, where faster
            tests show what it shows.
        in_exact: Whether ``nox -s exact`` kills it or its like: then it is for long
            sessions here.
    """

    name: str
    build: Callable[[], Case]
    backends: tuple[str, ...]
    kills: tuple[str, ...]
    save_freq: Any
    source: bool = False
    keeps_seed: bool = False
    in_keras: bool = True
    slow: tuple[str, ...] = ()
    in_exact: bool = False


SCENARIOS: dict[str, Scenario] = {}


def scenario(
    *kills: str,
    save_freq: Any = 2,
    backends: Iterable[str] = BACKENDS,
    slow: Iterable[str] = (),
    in_exact: bool = False,
) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    """Register the decorated function under its own name."""

    def register(build: Callable[[], Case]) -> Callable[[], Case]:
        name = build.__name__
        assert name not in SCENARIOS, name
        SCENARIOS[name] = Scenario(
            name,
            build,
            tuple(backends),
            kills,
            save_freq,
            slow=tuple(slow),
            in_exact=in_exact,
        )
        return build

    return register


# Twice in one epoch, before the first batch of an epoch, and in a later epoch.
SOURCE_KILLS = ("train_batch_end@1:2", "train_batch_end@1:4", "epoch_begin@2")


def source(
    *kills: str,
    save_freq: Any = 1,
    backends: Iterable[str] = BACKENDS,
    keeps_seed: bool = False,
    in_keras: bool = True,
    slow: Iterable[str] = (),
    in_exact: bool = False,
) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    """Register a scenario about a source of data; see ``Scenario``."""

    def register(build: Callable[[], Case]) -> Callable[[], Case]:
        name = build.__name__
        assert name not in SCENARIOS, name
        SCENARIOS[name] = Scenario(
            name,
            build,
            tuple(backends),
            kills or SOURCE_KILLS,
            save_freq,
            source=True,
            keeps_seed=keeps_seed,
            in_keras=in_keras,
            slow=tuple(slow),
            in_exact=in_exact,
        )
        return build

    return register
