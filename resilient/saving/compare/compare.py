"""Whether two checkpoints hold the same state, and where they do not."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from resilient.saving.compare import facts
from resilient.saving.compare.contents import Contents, Variable, matched, opened
from resilient.saving.compare.differences import (
    ABSENT,
    Arrays,
    Place,
    differing,
    places,
    shown,
)
from resilient.saving.part_files import malformed
from resilient.serialization import JSON
from resilient.storage.store import Store

_PlaceIn = tuple[str, Place]  # with its section


@dataclass(frozen=True)
class Difference:
    """A place that differs.

    Attributes:
        section: A variable's group, such as ``optimizer``, or a section of ``facts``.
        name: The place in the section.
        a: The first checkpoint's value in short, or a tensor's shape and dtype; None if
            only the other one has it.
        b: The second checkpoint's value, in the same form.
        count: How many elements differ, of tensors of one shape and dtype; else None.
        size: How many elements these have.
        largest: Their largest absolute difference; NaN if some are no numbers.
        counts: Whether it is part of the state.
    """

    section: str
    name: str
    a: str | None
    b: str | None
    count: int | None
    size: int | None
    largest: float | None
    counts: bool


@dataclass(frozen=True)
class Comparison:
    """The result of comparing two checkpoints.

    Attributes:
        a: The first checkpoint: its path, progress and backend.
        b: The second checkpoint, in the same form.
        tensors: How many variables they hold.
        differences: Every place that differs, variables first.
    """

    a: JSON
    b: JSON
    tensors: int
    differences: tuple[Difference, ...]

    @property
    def equal(self) -> bool:
        """Whether both hold the same state."""
        return not any(each.counts for each in self.differences)


def compare(
    store_a: Store, step_a: int | None, store_b: Store, step_b: int | None
) -> Comparison:
    """Compare two checkpoints.

    Args:
        store_a: The first checkpoint's store.
        step_a: Its step; None for the newest.
        store_b: The second checkpoint's store.
        step_b: Its step; None for the newest.

    Raises:
        BackendNotAvailableError: A library needed to read the tensors is missing.
        CheckpointNotFoundError: One of them does not exist.
        CheckpointReadError: One of them cannot be read here and now.
        CorruptCheckpointError: One of them is damaged.
        NotSupportedError: A later version wrote one of them.
        UntrustedCheckpointError: A key is set, and one of them is not signed with it.
    """
    a, b = opened(store_a, step_a), opened(store_b, step_b)
    every = chain(_variables(a, b), _other_places(a, b))
    found = (_difference(section, place) for section, place in every)
    differences = tuple(each for each in found if each is not None)
    count = max(len(a.variables), len(b.variables))
    return Comparison(_side(store_a, a), _side(store_b, b), count, differences)


def _side(store: Store, contents: Contents) -> JSON:
    checkpoint = contents.checkpoint
    return {
        "path": f"{store}/{checkpoint.path.name}",
        **checkpoint.progress._asdict(),
        "finished": checkpoint.finished,
        "backend": contents.backend,
    }


def _variables(a: Contents, b: Contents) -> Iterator[_PlaceIn]:
    ours, theirs = matched(a.variables, b.variables)
    for key, either in (theirs | ours).items():
        pair = (_array(each.get(key)) for each in (ours, theirs))
        yield either.group, (either.name, *pair)


def _array(variable: Variable | None) -> Any:
    return ABSENT if variable is None else np.asarray(variable.value)


def _other_places(a: Contents, b: Contents) -> Iterator[_PlaceIn]:
    with malformed(f"{a.checkpoint.path} or {b.checkpoint.path}"):
        yield from _in_sections("", facts.of_run(a), facts.of_run(b), ({}, {}))
        for number, pair in enumerate(zip(a.processes, b.processes, strict=False)):
            name = f"process {number}" if number else ""
            ours, theirs = (facts.of_process(x) for x in pair)
            tensors = pair[0].tensors, pair[1].tensors
            yield from _in_sections(name, ours, theirs, tensors)


def _in_sections(
    name: str, a: dict[str, JSON], b: dict[str, JSON], arrays: tuple[Arrays, Arrays]
) -> Iterator[_PlaceIn]:
    for section in a | b:
        for place in places(name, a.get(section, {}), b.get(section, {}), arrays):
            yield section, place


def _difference(section: str, place: Place) -> Difference | None:
    """The difference in a place; None if it holds two equal tensors."""
    name, a, b = place
    count = size = largest = None
    tensors = isinstance(a, np.ndarray) and isinstance(b, np.ndarray)
    if tensors and (a.shape, a.dtype) == (b.shape, b.dtype):
        (count, largest), size = differing(a, b), a.size
        if not count:
            return None
    counts = section not in facts.NOT_STATE
    return Difference(section, name, shown(a), shown(b), count, size, largest, counts)
