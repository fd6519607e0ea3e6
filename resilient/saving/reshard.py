"""Adapts a checkpoint to a different number of processes or replicas.

Shared state is restored as it was. A replica's own state is found by the replica's
number; with as many replicas as before, nothing else is needed, whichever processes
they are in. For a different number of replicas:

* metrics: replica 0 gets the sum of all counts, the others zero;
* statistics (of BatchNorm): all replicas get the mean over the former ones;
* seeds, and state that was the same in all: replica k gets what replica k had, round
    robin if there are more replicas now;
* anything else has no rule: the resume is refused.

For a process's own state (random state, callbacks, position of the data), all use that
of process 0, if all had the same position in the data.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from resilient.errors import (
    DataNotResumableError,
    NotSupportedError,
    warn_not_exact,
)
from resilient.saving.run_json import RunJson
from resilient.serialization import Encoded
from resilient.serialization.json_values import encode
from resilient.serialization.position import Positions, TrainingPosition
from resilient.serialization.schema import to_json

if TYPE_CHECKING:
    from resilient.saving.record import SavedState

_OWN = re.compile(r"(.+)\.replica_(\d{1,9})")


class ReplicaRemap(Mapping[str, Any]):
    """The tensors of a checkpoint, for a different number of replicas.

    Args:
        tensors: The tensors of all processes, by name.
        saved: How many replicas there were.
    """

    def __init__(self, tensors: Mapping[str, Any], saved: int) -> None:
        self._tensors, self._saved = tensors, saved

    def __len__(self) -> int:
        return len(self._tensors)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __getitem__(self, name: str) -> Any:
        own = _OWN.fullmatch(name)
        base, replica = (own[1], int(own[2])) if own else (name, 0)
        shared = base in self._tensors
        if shared and own is None:
            return self._tensors[base]
        names = [f"{base}.replica_{number}" for number in range(self._saved)]
        before = [self._tensors[each] for each in ([base] if shared else names)]
        return _given(base, before, replica)


def _given(name: str, before: list[np.ndarray], replica: int) -> np.ndarray:
    """What a replica gets of the former replicas' values."""
    group, first = name.partition(".")[0], np.asarray(before[0])
    if group == "metrics":
        total = np.asarray(np.sum(np.stack(before), axis=0, dtype=first.dtype))
        return total if replica == 0 else np.zeros_like(first)
    alike = all(np.array_equal(first, each) for each in before[1:])
    if alike or np.issubdtype(first.dtype, np.integer):
        return np.asarray(before[replica % len(before)])
    if group == "non_trainable":
        mean = np.mean(np.stack(before), axis=0, dtype=np.float64)
        return np.asarray(mean, dtype=first.dtype)
    raise NotSupportedError(
        "The replicas had different values of a variable, and no rule says which of "
        "them a different number of replicas should start with.",
        received=f"{name}, {len(before)} replicas",
        hint="Resume with as many replicas as before, or keep such state in a weight "
        "of a layer.",
    )


def reshard_processes(
    parts: Sequence["SavedState[RunJson]"],
) -> "SavedState[RunJson]":
    """What every process resumes with if a different number of processes saved.

    Raises:
        DataNotResumableError: The processes were at different places in their data.
    """
    first, (position, arrays) = parts[0], _common(parts[0].positions())
    for each in parts[1:]:
        where, held = _common(each.positions())
        alike = map(np.array_equal, arrays.values(), held.values())
        if where != position or not all(alike):
            raise _own_data(
                f"a checkpoint of {len(parts)} processes at different positions"
            )
    unequal = [
        what
        for what in ("random", "callbacks", "stateful", "objects", "history")
        if any(
            getattr(each.run, what, None) != getattr(first.run, what, None)
            for each in parts[1:]
        )
    ]
    if unequal:
        warn_not_exact(
            "the checkpoint is from a different number of processes, which had "
            "different values here; all continue with those of process 0",
            unequal,
        )
    return replace(first, position=position, tensors={**first.tensors, **arrays})


def require_same_batches(position: TrainingPosition, *, drawn_by_all: bool) -> None:
    """Raise if the processes would not continue with the same batches.

    Args:
        position: The position of the training data in the checkpoint.
        drawn_by_all: Whether every process draws the same batches now.

    Raises:
        DataNotResumableError: They drew differently, or their number has changed.
    """
    before = position.drawn_by_all
    if position.elsewhere and not (before and drawn_by_all):
        when = "when the checkpoint was saved" if not before else "now"
        raise _own_data(f"data in parts {when}")
    if before != drawn_by_all:
        rows, own = "rows of batches that all processes draw", "batches of its own"
        then, now = (rows, own) if before else (own, rows)
        raise DataNotResumableError(
            "The processes split the data differently than before, so they would not "
            "continue with the same batches.",
            received=f"before, a process trained {then}; now it trains {now}",
            hint="Split it as before: use the same kind of data, the same "
            "keras.distribution and, on torch, the same Keras (since 3.16 Keras "
            "splits the data itself).",
        )


def _own_data(received: str) -> DataNotResumableError:
    return DataNotResumableError(
        "Each process gets its own part of the data, so a different number of "
        "processes cannot continue with the same batches.",
        received=received,
        hint="Start as many processes as before; or give all processes the same "
        "data: on TensorFlow, arrays or a tf.data.Dataset with AutoShardPolicy.DATA; "
        "on JAX and torch, a tf.data.Dataset with auto_shard_dataset, or anything "
        "under a ModelParallel with one replica; on torch before Keras 3.16, "
        "anything but a DistributedSampler.",
    )


def _common(positions: Positions) -> tuple[Encoded, dict[str, np.ndarray]]:
    """The encoded position without the process's own batches, and its arrays."""
    x, validation = positions.x, positions.validation_data
    common = Positions(
        x=x and replace(x, data=x.data.shared(), elsewhere=True, shortest=None),
        validation_data=validation
        and replace(validation, data=validation.data.shared()),
    )
    arrays: dict[str, np.ndarray] = {}
    return encode(to_json(common), arrays, "elastic"), arrays
