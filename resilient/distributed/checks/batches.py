"""Checks that every process draws the right batches.

Two processes that split the same batches, but shuffle in different orders, would train
some samples twice and others never. Two that should have different parts of the data,
but have the same part, would do all work twice. Nothing else would reveal that.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from resilient.distributed.group import Group
from resilient.errors import DataNotResumableError, ResilientError
from resilient.serialization.batches import checksum

SAME_LENGTH = (
    "Give all processes the same number of batches: drop the remainder, or pass "
    "steps_per_epoch (validation_steps) and endless data."
)
_END: Any = object()


def compared(
    batches: Iterable[Any],
    name: str,
    group: Group,
    shard: int = 0,
    warn: Callable[[str], None] | None = None,
) -> Iterator[Any]:
    """The batches, after comparing the first one with that of the other processes.

    The iterator is created at once, as in Keras: that may draw random numbers, and
    Keras creates some iterators from which it draws no batch.

    Args:
        batches: What this process draws.
        name: The data's name in messages.
        group: The processes.
        shard: The part of the data that this process draws; processes with the same
            number draw the same part.
        warn: Called where different parts turn out to be the same.

    Raises:
        DataNotResumableError: Processes that should draw the same batch did not.
    """
    return _compared(iter(batches), name, group, shard, warn)


def _compared(
    batches: Iterator[Any],
    name: str,
    group: Group,
    shard: int,
    warn: Callable[[str], None] | None,
) -> Iterator[Any]:
    for number, batch in enumerate(batches):
        if number == 0:
            said = group.gather(f"first of {name}", [shard, checksum(batch)])
            others, twins = group.broadcast(f"others of {name}", _judged(said))
            if others:
                what = "begin with a different batch than earlier processes"
                raise _different(f"`{name}`: processes {others} {what}")
            if twins and warn is not None:
                warn(
                    f"Processes {twins} begin with the same batch of `{name}` as "
                    "another process, and each process trains everything that it "
                    "gets. Give each its own part, or a tf.data.Dataset, which "
                    "keras.distribution splits (auto_shard_dataset)."
                )
        yield batch


def in_step(batches: Iterable[Any], name: str, group: Group) -> Iterator[Any]:
    """The batches of data whose length is unknown.

    Before each batch the processes agree that all have one: a process that trains one
    more batch than another would wait for it forever.

    Args:
        batches: What this process trains.
        name: The data's name in messages.
        group: The processes.

    Raises:
        ResilientError: The data of this process ended, or that of process 0.
    """
    return _in_step(iter(batches), name, group)


def _in_step(batches: Iterator[Any], name: str, group: Group) -> Iterator[Any]:
    for number in itertools.count():
        batch = next(batches, _END)
        there = bool(group.broadcast(f"more of {name}", batch is not _END))
        if there != (batch is not _END):
            mine, theirs = ("does", "does not") if there else ("does not", "does")
            raise ResilientError(
                "The processes have data of different lengths: those with more "
                "would wait for the others forever.",
                received=f"after {number:,} batches `{name}` {mine} end in process "
                f"{group.index}, and {theirs} in process 0",
                hint=SAME_LENGTH,
            )
        if batch is _END:
            return
        yield batch


def require_same_length(length: list[int | None], name: str, group: Group) -> None:
    """Raise before training if processes have data of different lengths.

    Args:
        length: Batches of the data, and of an epoch if limited; None: unknown.
        name: The data's name in messages.
        group: The processes.

    Raises:
        ResilientError: They differ.
    """
    everyones = group.broadcast("lengths", group.gather("length", length))
    if any(theirs != everyones[0] for theirs in everyones):
        told = [_length(*theirs) for theirs in everyones]
        raise ResilientError(
            "The processes have data of different lengths: those with more would "
            "wait for the others forever.",
            received=f"`{name}` has, by process: {', '.join(told)}",
            hint=SAME_LENGTH,
        )


def _length(batches: int | None, steps: int | None) -> str:
    found = (
        "an unknown number of batches" if batches is None else f"{batches:,} batches"
    )
    return found if steps is None else f"{found} ({steps:,} steps an epoch)"


def require_same_arrays(fingerprint: Any, name: str, group: Group) -> None:
    """Raise if processes that split arrays have different ones.

    Args:
        fingerprint: The fingerprint of this process's arrays.
        name: What they are called in messages.
        group: The processes.

    Raises:
        DataNotResumableError: They differ.
    """
    everyones = group.broadcast("all arrays", group.gather("arrays", fingerprint))
    others = [n for n, theirs in enumerate(everyones) if theirs != everyones[0]]
    if others:
        raise _different(f"`{name}`: processes {others} have different arrays")


def _judged(said: list[tuple[int, str]]) -> tuple[list[int], list[int]]:
    """Processes that lack what they should share, and processes that share too much."""
    first: dict[int, str] = {}
    others, twins, seen = list[int](), list[int](), set[str]()
    for process, (shard, digest) in enumerate(said):
        if shard not in first:
            first[shard] = digest
            if digest in seen:
                twins.append(process)
            seen.add(digest)
        elif first[shard] != digest:
            others.append(process)
    return others, twins


def _different(received: str) -> DataNotResumableError:
    return DataNotResumableError(
        "The processes have different data but need the same: they train each batch "
        "together.",
        received=received,
        hint="Give them the same arrays, and shuffle with the same seed "
        "(keras.utils.set_random_seed, a DataLoader's generator). On PyTorch, before "
        "Keras 3.16 and in custom loops, a DataLoader may have a "
        "torch.utils.data.DistributedSampler instead.",
    )
