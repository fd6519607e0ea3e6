"""Opens a checkpoint for inspection: what each process saved, without the backend.

Every byte is first verified against the manifest. Large tensors stay on disk until they
are compared.
"""

import re
from collections import ChainMap, Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from resilient.backends.base import Part
from resilient.saving import choose
from resilient.saving.part_files import processes, read_part, saver_of
from resilient.saving.record import SavedState
from resilient.saving.run_json import RunJson
from resilient.state.other_dtypes import place
from resilient.storage import refusals
from resilient.storage.checkpoint import Checkpoint, DamageError
from resilient.storage.store import Store

_NUMBER = re.compile(r"_\d+")


class Variable(NamedTuple):
    """A variable in a checkpoint, or one replica's copy of it.

    Attributes:
        group: What it belongs to: ``trainable``, ``optimizer``, and of a loop also the
            object.
        name: Its path.
        place: Its group and its number in it.
        value: Something that ``numpy.asarray`` makes an array of.
    """

    group: str
    name: str
    place: str
    value: Any


@dataclass(frozen=True)
class Contents:
    """What a checkpoint holds.

    Attributes:
        checkpoint: The checkpoint itself.
        backend: The backend that saved it.
        processes: What each process saved, by number.
        variables: The variables, in the checkpoint's order.
    """

    checkpoint: Checkpoint
    backend: str
    processes: list[SavedState[RunJson]]
    variables: list[Variable]


def opened(store: Store, step: int | None) -> Contents:
    """The checkpoint of a step, or the newest one, verified; nothing is changed.

    Raises:
        BackendNotAvailableError: A library needed to read its tensors is missing.
        CheckpointNotFoundError: It does not exist.
        CheckpointReadError: It cannot be read here and now.
        CorruptCheckpointError: It is damaged.
        NotSupportedError: A later version wrote it.
        UntrustedCheckpointError: A key is set, and it is not signed with that key.
    """
    steps = store.steps()
    if not steps:
        raise choose.not_found(store)
    checkpoint = store.read(steps[-1] if step is None else step)
    try:
        return checkpoint.load(_read)
    except DamageError as error:
        if not checkpoint.path.exists():
            raise choose.not_found(checkpoint.path) from None  # just pruned
        raise refusals.damaged(checkpoint.path, str(error)) from None


Matched = dict[tuple[str | int, ...], Variable]


def matched(a: Sequence[Variable], b: Sequence[Variable]) -> tuple[Matched, Matched]:
    """The variables of two checkpoints, where counterparts have the same key.

    Keras numbers its automatic names differently in each process, so variables are
    matched by their places, or, if the models differ, by names without these numbers.
    """
    by_place = [each.place for each in a] == [each.place for each in b]
    return _by_key(a, by_place), _by_key(b, by_place)


def _by_key(variables: Sequence[Variable], by_place: bool) -> Matched:
    found, counts = Matched(), Counter[tuple[str, str]]()
    for each in variables:
        key = each.group, each.place if by_place else _NUMBER.sub("", each.name)
        counts[key] += 1
        found[*key, counts[key]] = each
    return found


def _read(checkpoint: Checkpoint) -> Contents:
    backend, count = saver_of(checkpoint), processes(checkpoint)
    found = [
        SavedState(*read_part(Part(number, count), checkpoint, backend, lazy=True))
        for number in range(count)
    ]
    tensors = ChainMap(*(dict(each.tensors) for each in found))
    return Contents(checkpoint, backend, found, [*_variables(found[0].run, tensors)])


def _variables(run: RunJson, tensors: Mapping[str, Any]) -> Iterator[Variable]:
    """The variables of a run, each replica's copy on its own where these differ."""
    in_order = sorted(tensors)
    for saved in run.variables:
        name, where = saved["name"], place(saved["name"])
        group = where.rpartition(".")[0] or "variables"
        for each in [name] if name in tensors else in_order:
            suffix = each.removeprefix(name)
            if each == name or suffix.startswith(".replica_"):
                yield Variable(group, saved["path"] + suffix, where, tensors[each])
