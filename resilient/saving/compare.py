"""Compares two checkpoints: every tensor byte by byte, and every other value.

Loads neither Keras nor a backend, and only reads. Every byte is first verified against
the manifest; large tensors stay on the disk until they are compared. 0.0 is not -0.0,
and NaNs may differ in their bits. Other values are compared as the JSON that
checkpoints hold: a user's object stays its name and its contents.
"""

import re
from collections import ChainMap, Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from resilient.backends.arrays import as_bytes
from resilient.backends.base import Part
from resilient.saving import choose, leaves
from resilient.saving.record import SavedState, processes, read_part, saver_of
from resilient.saving.run_json import RunJson, encoded
from resilient.serialization import JSON
from resilient.serialization.json_values import decode
from resilient.storage.checkpoint import Checkpoint
from resilient.storage.store import Store

PIECE = 1 << 20  # elements compared at a time, so memory stays small

_NOT_STATE = (leaves.CLOCKS, "settings", "environment")
_SETTINGS = ("kind", "replicas", "learning_rates", "setup", "setups", "data", "models")
_LONGEST = 200  # characters in a value
_NUMBER = re.compile(r"_\d+")
_PLACE = re.compile(r"\.\d+(?:\.|\Z)")  # the number of a variable in its group

_ABSENT: Any = object()  # in place of a value that only the other side has

# By section and by a place that its counterpart has as well: a name, and the value.
_Leaves = dict[tuple[str, str], tuple[str, Any]]


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
    about_a, count_a, a = _opened(store_a, step_a)
    about_b, count_b, b = _opened(store_b, step_b)
    found = tuple(_differences(a, b))
    return Comparison(about_a, about_b, max(count_a, count_b), found)


def _opened(store: Store, step: int | None) -> tuple[JSON, int, _Leaves]:
    """The checkpoint of a step, or the newest one: in words, its variables and leaves.

    Keras numbers its automatic names differently in each process, so the keys of
    variables have their numbers in the order of the variables instead.
    """
    checkpoint, found = choose.intact(store, step, _read)
    about = {
        "path": f"{store}/{checkpoint.path.name}",
        **checkpoint.progress._asdict(),
        "finished": checkpoint.finished,
        "backend": saver_of(checkpoint),
    }
    every, numbers = _Leaves(), Counter[tuple[str, str]]()
    tensors = ChainMap(*(dict(each.tensors) for each in found))
    for name, path, tensor in leaves.variables_of(found[0].run.variables, tensors):
        key = _PLACE.split(name)[0], _NUMBER.sub("", path)
        numbers[key] += 1
        every[key[0], f"{key[1]} {numbers[key]}"] = path, tensor
    for k, each in enumerate(found):
        process = f"process {k} " if k else ""
        about_run = {} if k else _about_run(each.run, checkpoint, len(found))
        for (section, name), value in (about_run | leaves.values_of(each)).items():
            for path, part in leaves.parts_of(process + name, value, each.tensors):
                every[section, path] = path, part
    return about, numbers.total(), every


def _read(checkpoint: Checkpoint) -> list[SavedState[RunJson]]:
    count = processes(checkpoint)
    return [read_part(Part(k, count), checkpoint, lazy=True) for k in range(count)]


def _about_run(run: RunJson, checkpoint: Checkpoint, count: int) -> leaves.Values:
    """Where the run is, what it is, and what it ran on."""
    data, versions = encoded(run), dict(checkpoint.environment)
    settings = {name: data[name] for name in _SETTINGS if name in data}
    settings["finished"] = checkpoint.finished
    for part in data.get("fingerprint", {}).values():
        settings |= {name: x for name, x in part.items() if name not in versions}
    progress = {"processes": count, **checkpoint.progress._asdict()}
    sections = {"progress": progress, "settings": settings, "environment": versions}
    return {
        (at, name): x for at, values in sections.items() for name, x in values.items()
    }


def _differences(a: _Leaves, b: _Leaves) -> Iterator[Difference]:
    """Where two checkpoints differ; of what only one has, not each part."""
    gone, parts = "", ("", "")
    for section, place in a | b:
        if section == gone and place.startswith(parts):
            continue
        ours, theirs = a.get((section, place)), b.get((section, place))
        if ours is None or theirs is None:
            gone, parts = section, (f"{place}.", f"{place}[")
        name, _ = ours or theirs or ("", None)
        one, other = (_ABSENT if x is None else x[1] for x in (ours, theirs))
        count = size = largest = None
        if hasattr(one, "dtype") and hasattr(other, "dtype"):
            if (one.shape, one.dtype) == (other.shape, other.dtype):
                one, other = np.asarray(one), np.asarray(other)
                (count, largest), size = differing(one, other), one.size
        elif repr(one) == repr(other):  # 1 is not 1.0, nor 0.0 -0.0
            continue
        if count != 0:
            sides, counts = (_shown(one), _shown(other)), section not in _NOT_STATE
            yield Difference(section, name, *sides, count, size, largest, counts)


def _shown(value: Any) -> str | None:
    """A value as a short text; None if it is absent."""
    if value is _ABSENT:
        return None
    if hasattr(value, "dtype"):
        return f"({', '.join(map(str, value.shape))}) {value.dtype}"
    if isinstance(value, dict):
        # Of an integer that is too long for JSON, the digits are hexadecimal.
        plain = value["!"] in ("float", "str")
        value = decode(value, {}) if plain else value["v"]
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
