"""Matches the variables of one checkpoint to those of another.

Keras numbers its automatic names differently in each process, so variables are matched
by place: group and order. If the models differ, so that the places do too, variables
are aligned by their paths without those numbers.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from resilient.saving.compare.contents import Contents
from resilient.serialization import JSON
from resilient.state.other_dtypes import SEEDS, place

_GROUPS = {
    "trainable": "weights",
    "non_trainable": "weights",
    "optimizer": "optimizer",
    "metrics": "metrics",
}
_REPLICA = re.compile(r"(.+)\.replica_(\d{1,9})")
_NUMBER = re.compile(r"_\d+")
_MOST_ALIGNED = 2000  # variables; aligning takes quadratic time


@dataclass(frozen=True)
class Variable:
    """A variable in a checkpoint, or a replica's value of one.

    Attributes:
        group: Its group: ``weights``, ``optimizer``, ``metrics``, ``seeds``, or
            ``variables`` for all others.
        name: A readable name.
        place: Its group, object and number in the checkpoint, and its replica.
        value: An array, or something ``numpy.asarray`` converts to one.
    """

    group: str
    name: str
    place: str
    value: Any

    @property
    def key(self) -> str:
        """The key that it shares with its counterpart in another model."""
        return f"{self.group} {_NUMBER.sub('', self.name)}"


def variables(contents: Contents) -> list[Variable]:
    """The variables of a checkpoint, in checkpoint order."""
    copies: dict[str, list[tuple[int, str]]] = {}
    for name in contents.tensors:
        if found := _REPLICA.fullmatch(name):
            copies.setdefault(found[1], []).append((int(found[2]), name))
    return [
        variable
        for saved in contents.run.variables
        for variable in _of(saved, contents.tensors, copies.get(saved["name"], []))
    ]


def _of(
    saved: JSON, tensors: Mapping[str, Any], copies: list[tuple[int, str]]
) -> Iterator[Variable]:
    where = place(saved["name"])
    group, *names = where.split(".")
    of_object = ".".join(names[:-1])
    name = f"{of_object}: {saved['path']}" if of_object else saved["path"]
    group = _GROUPS.get(group, "variables")
    if saved["path"].endswith(SEEDS):
        group = "seeds"
    if saved["name"] in tensors:
        yield Variable(group, name, where, tensors[saved["name"]])
        return
    for replica, tensor in sorted(copies):
        of_replica = f" (replica {replica})"
        yield Variable(group, name + of_replica, where + of_replica, tensors[tensor])


Pair = tuple[Variable | None, Variable | None]


def pairs(a: Sequence[Variable], b: Sequence[Variable]) -> Iterator[Pair]:
    """Each variable with its counterpart, or None if it has no counterpart."""
    if [each.place for each in a] == [each.place for each in b]:
        yield from zip(a, b, strict=True)
    elif max(len(a), len(b)) > _MOST_ALIGNED:
        yield from _by_place(a, b)
    else:
        yield from _aligned(a, b)


def _by_place(a: Sequence[Variable], b: Sequence[Variable]) -> Iterator[Pair]:
    theirs = {each.place: each for each in b}
    for each in a:
        yield each, theirs.pop(each.place, None)
    for left in theirs.values():
        yield None, left


def _aligned(a: Sequence[Variable], b: Sequence[Variable]) -> Iterator[Pair]:
    keys = [each.key for each in a], [each.key for each in b]
    matcher = SequenceMatcher(None, *keys, autojunk=False)
    for what, i, end, j, stop in matcher.get_opcodes():
        if what == "equal":
            yield from zip(a[i:end], b[j:stop], strict=True)
            continue
        yield from ((each, None) for each in a[i:end])
        yield from ((None, each) for each in b[j:stop])
