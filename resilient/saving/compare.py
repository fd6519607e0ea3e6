"""Compares two checkpoints: every tensor byte by byte, and every other value.

Loads neither Keras nor a backend, and only reads. Every byte is first verified against
the manifest; large tensors stay on the disk until they are compared. 0.0 is not -0.0,
and NaNs may differ in their bits. Other values are compared as the JSON that
checkpoints hold: a user's object stays its name and its contents.
"""

import re
from collections import ChainMap, Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from resilient.backends.arrays import as_bytes
from resilient.backends.base import Part
from resilient.saving import choose, leaves
from resilient.saving.record import malformed, processes, read_part, saver_of
from resilient.saving.run_json import RunJson, encoded
from resilient.serialization import JSON
from resilient.serialization.decoding import decode, outline
from resilient.state.other_dtypes import place
from resilient.storage.checkpoint import Checkpoint
from resilient.storage.store import Store

PIECE = 1 << 20  # elements compared at a time, so memory stays small

_NOT_STATE = (leaves.CLOCKS, "settings", "environment")
_SETTINGS = ("kind", "replicas", "learning_rates", "setup", "setups", "data", "models")
_ABSENT = object()  # in place of a value that only the other side has
_LONGEST = 200  # characters in a value
_NUMBER = re.compile(r"_\d+")


@dataclass(frozen=True)
class Difference:
    """A place that differs.

    Attributes:
        section: A variable's group, such as ``optimizer``, or another section.
        name: The place in the section.
        a: The first checkpoint's value in short, or a tensor's shape and dtype; None if
            only the other one has it.
        b: The second checkpoint's value, in the same form.
        count: How many elements differ, of tensors of one shape and dtype; else None.
        size: How many elements these have.
        largest: Their largest absolute difference; NaN if some are no numbers.
        counts: Whether it is part of the state: what the run is and what it ran on are
            not. If they made a difference, the state shows it.
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
        differences: Every place that differs, those that only ``b`` has at the end.
    """

    a: JSON
    b: JSON
    tensors: int
    differences: tuple[Difference, ...]

    @property
    def equal(self) -> bool:
        """Whether both hold the same state."""
        return not any(each.counts for each in self.differences)


class _Leaf(NamedTuple):
    """A variable, or another value and the arrays that it refers to.

    Attributes:
        section: As of ``Difference``.
        name: Likewise.
        value: A tensor, perhaps still on the disk; or any encoded value.
        arrays: By name.
        place: A variable's group and its number in it.
    """

    section: str
    name: str
    value: Any
    arrays: Mapping[str, Any] = {}
    place: str = ""


class _Contents(NamedTuple):
    """What a checkpoint holds: itself in words, its variables, and other values."""

    about: JSON
    variables: list[_Leaf]
    values: list[_Leaf]

    def leaves(self, *, by_place: bool) -> dict[tuple[Any, ...], _Leaf]:
        """All of it, where counterparts in another checkpoint have the same key.

        Keras numbers its automatic names differently in each process, so variables are
        matched by their places, or, if the models differ, by names without numbers.
        """
        found, counts = dict[tuple[Any, ...], _Leaf](), Counter[tuple[str, str]]()
        for each in self.variables:
            name = each.place if by_place else _NUMBER.sub("", each.name)
            counts[each.section, name] += 1
            found[each.section, name, counts[each.section, name]] = each
        return found | {(each.section, each.name): each for each in self.values}


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
    a, b = _opened(store_a, step_a), _opened(store_b, step_b)
    alike = [each.place for each in a.variables] == [each.place for each in b.variables]
    with malformed(f"{a.about['path']} or {b.about['path']}"):
        ours, theirs = a.leaves(by_place=alike), b.leaves(by_place=alike)
        found = (
            difference
            for key in ours | theirs
            for difference in _differences(ours.get(key), theirs.get(key))
        )
        count = max(len(a.variables), len(b.variables))
        return Comparison(a.about, b.about, count, tuple(found))


def _opened(store: Store, step: int | None) -> _Contents:
    """The checkpoint of a step, or the newest one, verified; nothing is changed."""
    checkpoint = choose.of_step(store, step)
    return choose.intact(checkpoint, lambda found: _read(found, str(store)))


def _read(checkpoint: Checkpoint, directory: str) -> _Contents:
    backend, count = saver_of(checkpoint), processes(checkpoint)
    found = [
        read_part(Part(number, count), checkpoint, backend, lazy=True)
        for number in range(count)
    ]
    about = {
        "path": f"{directory}/{checkpoint.path.name}",
        **checkpoint.progress._asdict(),
        "finished": checkpoint.finished,
        "backend": backend,
    }
    run = found[0].run
    tensors = ChainMap(*(dict(each.tensors) for each in found))
    variables = []
    for name, path, tensor in leaves.variables_of(run.variables, tensors):
        where = place(name)
        group = where.rpartition(".")[0] or "variables"
        variables.append(_Leaf(group, path, tensor, place=where))
    values = [
        _Leaf(section, f"process {number} {name}" if number else name, value, x.tensors)
        for number, x in enumerate(found)
        for (section, name), value in leaves.values_of(x).items()
    ]
    return _Contents(about, variables, [*_about_run(run, checkpoint, count), *values])


def _about_run(run: RunJson, checkpoint: Checkpoint, count: int) -> Iterator[_Leaf]:
    """Where the run is, what it is, and what it ran on."""
    data, versions = encoded(run), dict(checkpoint.environment)
    settings = {name: data[name] for name in _SETTINGS if name in data}
    settings["finished"] = checkpoint.finished
    for part in data.get("fingerprint", {}).values():
        settings |= {name: x for name, x in part.items() if name not in versions}
    progress = {"processes": count, **checkpoint.progress._asdict()}
    sections = {"progress": progress, "settings": settings, "environment": versions}
    for section, values in sections.items():
        for name, value in values.items():
            yield _Leaf(section, name, value)


def _differences(a: _Leaf | None, b: _Leaf | None) -> Iterator[Difference]:
    leaf = a or b
    assert leaf is not None
    ours, theirs = (leaf._replace(value=_ABSENT) if x is None else x for x in (a, b))
    arrays = ours.arrays, theirs.arrays
    for name, one, other in _places(leaf.name, ours.value, theirs.value, arrays):
        count = size = largest = None
        tensors = isinstance(one, np.ndarray) and isinstance(other, np.ndarray)
        if tensors and (one.shape, one.dtype) == (other.shape, other.dtype):
            (count, largest), size = differing(one, other), one.size
        if count != 0:
            sides, counts = (_shown(one), _shown(other)), leaf.section not in _NOT_STATE
            yield Difference(leaf.section, name, *sides, count, size, largest, counts)


def _places(
    name: str, a: Any, b: Any, arrays: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, Any, Any]]:
    """Every place where two values differ or both have an array, in order."""
    kind, one = _parts(a, arrays[0])
    other_kind, other = _parts(b, arrays[1])
    if kind == other_kind and isinstance(one, np.ndarray):
        yield name, one, other
    elif kind == other_kind and isinstance(one, dict) and isinstance(other, dict):
        if kind == "dict" and [*one] != [*other] and one.keys() == other.keys():
            yield f"{name} (order of keys)", [*one], [*other]
        for key in one | other:
            dot = "." if name and key and not key.startswith("[") else ""
            pair = one.get(key, _ABSENT), other.get(key, _ABSENT)
            yield from _places(f"{name}{dot}{key}", *pair, arrays)
    elif repr(a) != repr(b):  # 1 is not 1.0, nor 0.0 -0.0
        yield name, a, b


def _parts(value: Any, arrays: Mapping[str, Any]) -> tuple[str, Any]:
    """The kind of a value, and its array or its parts by name, if it has any."""
    if hasattr(value, "dtype"):
        return "array", np.asarray(value)
    if isinstance(value, list):
        return "items", {f"[{index}]": item for index, item in enumerate(value)}
    if not isinstance(value, dict):
        return "plain", None
    if value.keys() != {"!", "v"}:
        return "object", value
    tag, content = value["!"], value["v"]
    if tag == "array":
        return tag, decode(value, arrays)
    if tag != "dict":
        return tag, _parts(content, arrays)[1]
    names = (key if isinstance(key, str) else f"[{_shown(key)}]" for key, _ in content)
    items = dict(zip(names, (item for _, item in content), strict=True))
    return tag, items if len(items) == len(content) else None


def _shown(value: Any) -> str | None:
    """A value as a short text; None if it is absent."""
    if value is _ABSENT:
        return None
    if hasattr(value, "dtype"):
        return f"({', '.join(map(str, value.shape))}) {value.dtype}"
    if isinstance(value, dict) and value.keys() == {"!", "v"}:
        # Of an integer that is too long for JSON, the digits are hexadecimal.
        plain = value["!"] in ("float", "str")
        value = outline(value, {}) if plain else value["v"]
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def differing(a: np.ndarray, b: np.ndarray) -> tuple[int, float]:
    """How many elements differ in any bit, and the largest absolute difference.

    The largest is NaN if one of them is no number, and 0.0 if only the signs of zeros
    differ. It may be rounded, of integers beyond 2**53.

    Args:
        a: An array.
        b: Another one, of the same dtype and shape.
    """
    count, largest = 0, np.longdouble(0)
    a, b = (np.ascontiguousarray(each).reshape(-1) for each in (a, b))
    for start in range(0, len(a) if a.itemsize else 0, PIECE):
        one, other = a[start : start + PIECE], b[start : start + PIECE]
        unlike = as_bytes(one) != as_bytes(other)
        differ = unlike.reshape(len(one), -1).any(axis=1)
        count += int(differ.sum())
        largest = np.maximum(largest, _largest(one[differ], other[differ]))
    return count, float(largest)


def _largest(a: np.ndarray, b: np.ndarray) -> Any:
    kind = a.dtype.kind
    if kind not in "biufc" and "float" not in a.dtype.name:  # ml_dtypes' are void
        return np.nan
    wide = np.clongdouble if kind == "c" else np.longdouble
    with np.errstate(all="ignore"):
        return np.abs(a.astype(wide) - b.astype(wide)).max(initial=0)
