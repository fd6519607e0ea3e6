"""Whether two checkpoints hold the same state, and where they do not.

Tensors and other state are compared byte by byte: 0.0 is not -0.0, and NaNs may differ
in their bits. Between two backends, integers are compared as numbers, because each
backend has its own integer types, and the backends' random states are left out.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from resilient.errors import CorruptCheckpointError
from resilient.progress import Progress
from resilient.saving.compare import facts
from resilient.saving.compare.contents import Contents, damaged, opened
from resilient.saving.compare.distance import Distance, distance, seed_words
from resilient.saving.compare.pairs import Variable, pairs, variables
from resilient.saving.compare.values import ArrayPair, Arrays, differences
from resilient.saving.part_files import malformed
from resilient.saving.run_json import encoded
from resilient.serialization import JSON
from resilient.storage.store import Store

_NOT_COMPARED = "random states of the backends, and the orders drawn from them"

_NO_ARRAYS: tuple[Arrays, Arrays] = ({}, {})

How = Literal["equal", "values", "bits", "dtype", "shape", "only_a", "only_b"]


@dataclass(frozen=True)
class Tensor:
    """A tensor's shape, and the name of its dtype."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Leaf:
    """A tensor in two checkpoints.

    Attributes:
        group: ``weights``, ``optimizer``, ``metrics``, ``seeds`` or ``variables``; of
            other arrays, the section.
        name: A readable name, unique in the group.
        how: How it differs. ``bits``: only in the signs of zeros and the bits of NaNs.
            ``dtype``: in the type; the values are then compared as numbers.
        a: The first checkpoint's tensor; None if it has none.
        b: The second checkpoint's tensor; None if it has none.
        size: The number of elements; 0 unless both exist and have the same shape.
        distance: How far apart they are; None unless both have the same shape.
        counts: Whether it is part of the state.
    """

    group: str
    name: str
    how: How
    a: Tensor | None
    b: Tensor | None
    size: int = 0
    distance: Distance | None = None
    counts: bool = True

    @property
    def equal(self) -> bool:
        return self.how == "equal"


@dataclass(frozen=True)
class Fact:
    """A value other than a tensor that differs.

    Attributes:
        section: One of ``facts.SECTIONS``.
        name: Its place in the section.
        a: The first checkpoint's value, as short plain JSON.
        b: The second checkpoint's value, in the same form.
        only: ``"a"`` or ``"b"`` if only that checkpoint has the value.
        counts: Whether it is part of the state.
    """

    section: str
    name: str
    a: Any
    b: Any
    only: str | None
    counts: bool


@dataclass(frozen=True)
class Side:
    """One of two checkpoints.

    Attributes:
        path: The checkpoint's path.
        progress: The run's progress at the save.
        finished: Whether the run was finished.
        saved_by: The kind of the run: ``fit``, ``loop``, ``variables`` or ``import``.
        backend: The backend that saved it.
        environment: The versions it was saved with, by name.
    """

    path: str
    progress: Progress
    finished: bool
    saved_by: str
    backend: str
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Comparison:
    """The result of comparing two checkpoints.

    Attributes:
        a: The first checkpoint.
        b: The second checkpoint.
        leaves: Every tensor, in checkpoint order.
        facts: The other differences, in the order of ``facts.SECTIONS``.
        left_out: Descriptions of what was not compared.
    """

    a: Side
    b: Side
    leaves: tuple[Leaf, ...]
    facts: tuple[Fact, ...]
    left_out: tuple[str, ...] = field(default=())

    @property
    def equal(self) -> bool:
        """Whether both hold the same state."""
        return all(each.equal or not each.counts for each in self.leaves) and not any(
            each.counts for each in self.facts
        )


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
    elsewhere = a.backend != b.backend
    found = [*_tensors(a, b, elsewhere), *_sections(a, b, elsewhere)]
    told = sorted(
        (each for each in found if isinstance(each, Fact)),
        key=lambda fact: facts.SECTIONS.index(fact.section),
    )
    return Comparison(
        _side(store_a, a),
        _side(store_b, b),
        tuple(each for each in found if isinstance(each, Leaf)),
        tuple(told),
        (_NOT_COMPARED,) if elsewhere else (),
    )


def _side(store: Store, contents: Contents) -> Side:
    checkpoint = contents.checkpoint
    return Side(
        f"{store}/{checkpoint.path.name}",
        checkpoint.progress,
        checkpoint.finished,
        encoded(contents.run)["kind"],
        contents.backend,
        dict(checkpoint.environment),
    )


def _tensors(a: Contents, b: Contents, elsewhere: bool) -> Iterator[Leaf]:
    for one, other in pairs(variables(a), variables(b)):
        x, y = _array(one, a), _array(other, b)
        either = one or other
        assert either is not None
        if x is not None and y is not None and elsewhere:
            x, y = _as_numbers(either, x, y)
        yield _leaf(either.group, either.name, x, y)


def _array(variable: Variable | None, contents: Contents) -> np.ndarray | None:
    if variable is None:
        return None
    try:
        return np.asarray(variable.value)
    except CorruptCheckpointError as error:
        why = f"{variable.name}: {error.received}"
        raise damaged(contents.checkpoint, why) from error


def _as_numbers(
    variable: Variable, a: np.ndarray, b: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Cast integers to one type, since each backend has its own integer types."""
    if not {a.dtype.kind, b.dtype.kind} <= {*"iu"} or a.dtype == b.dtype:
        return a, b
    if variable.group == "seeds":
        return seed_words(a), seed_words(b)
    wide = np.promote_types(a.dtype, b.dtype)
    return (a.astype(wide), b.astype(wide)) if wide.kind in "iu" else (a, b)


def _leaf(group: str, name: str, a: np.ndarray | None, b: np.ndarray | None) -> Leaf:
    how: How
    size, apart = 0, None
    if a is None or b is None:
        how = "only_b" if a is None else "only_a"
    elif a.shape != b.shape:
        how = "shape"
    else:
        size, apart = a.size, distance(a, b)
        how = _how(a, b, apart)
    counts = group not in facts.NOT_STATE
    return Leaf(group, name, how, _told(a), _told(b), size, apart, counts)


def _told(array: np.ndarray | None) -> Tensor | None:
    return None if array is None else Tensor(array.shape, str(array.dtype))


def _how(a: np.ndarray, b: np.ndarray, apart: Distance) -> How:
    if a.dtype != b.dtype:
        return "dtype"
    if not apart.count:
        return "equal"
    return "values" if apart.unlike else "bits"


def _sections(a: Contents, b: Contents, elsewhere: bool) -> Iterator[Leaf | Fact]:
    with malformed(f"{a.checkpoint.path} or {b.checkpoint.path}"):
        yield from _section("progress", "", _progress(a), _progress(b), _NO_ARRAYS)
        for number, both in enumerate(zip(a.processes, b.processes, strict=False)):
            of_process = f"process {number}" if number else ""
            arrays = both[0].arrays, both[1].arrays
            ours, theirs = (
                dict(facts.of_process(each, elsewhere=elsewhere)) for each in both
            )
            for name in (*ours, *(name for name in theirs if name not in ours)):
                one, other = ours.get(name, {}), theirs.get(name, {})
                yield from _section(name, of_process, one, other, arrays)
        for one_run, other_run in zip(facts.of_run(a), facts.of_run(b), strict=True):
            name, values = one_run
            yield from _section(name, "", values, other_run.values, _NO_ARRAYS)


def _progress(contents: Contents) -> JSON:
    count = len(contents.processes)
    several = {"processes": count} if count > 1 else {}
    return contents.checkpoint.progress.to_json() | several


def _section(
    section: str, name: str, a: JSON, b: JSON, arrays: tuple[Arrays, Arrays]
) -> Iterator[Leaf | Fact]:
    for each in differences(name, a, b, arrays):
        if isinstance(each, ArrayPair):
            yield _leaf(section, each.name, each.a, each.b)
        else:
            counts = section not in facts.NOT_STATE
            yield Fact(section, each.name, each.a, each.b, each.only, counts)
