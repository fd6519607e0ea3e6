"""Combines the parts that several processes write into one checkpoint.

Each process stages its part in a directory of its own, with the final names of its
files, and flushes it to disk; none waits for another. When all parts are complete,
process 0 moves their files beside its own and commits: a kill before that leaves
directories that no reader looks at.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from resilient.distributed.group import Group
from resilient.errors import CheckpointWriteError, ResilientError
from resilient.saving.snapshot import VARIABLES, Snapshot
from resilient.serialization.schema import from_json
from resilient.storage import commit, layout
from resilient.storage.manifest import FileRecord


@dataclass(frozen=True)
class Report:
    """A process's report on its part; of process 0, on the commit.

    Attributes:
        error: Why it was not written, if it was not.
        of_disk: Whether a later save may succeed.
        files: Its files, by path in the checkpoint.
        digests: As of the backend's snapshot.
    """

    error: str | None = None
    of_disk: bool = True
    files: dict[str, FileRecord] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)


class Parts:
    """The parts of one checkpoint, in process 0.

    Args:
        group: The processes.
        snapshot: The part of process 0.
    """

    def __init__(self, group: Group, snapshot: Snapshot) -> None:
        self._group, self._snapshot = group, snapshot
        self._heard = False  # the others' reports

    def gather(self, staging: Path) -> dict[str, FileRecord]:
        """Move the others' files into the staging directory, and return their records.

        Raises:
            CheckpointWriteError: One of the others could not write its part.
            PeerLostError: One of them is gone.
            ResilientError: The processes differ in what all should have.
        """
        if self._group.count == 1:
            return {}
        mine = self._snapshot.tensors.digests(self._snapshot.part)
        _, *said = self._group.gather("part")
        self._heard = True
        others = [from_json(Report, each) for each in said]
        for part in others:
            if part.error is not None:
                raise CheckpointWriteError(part.error)
        _require_alike([mine, *(part.digests for part in others)])
        records = dict[str, FileRecord]()
        for index, part in enumerate(others, 1):
            own = staging.parent / layout.part_name(str(self._snapshot.staging), index)
            for path in part.files:
                target = staging / path
                target.parent.mkdir(parents=True, exist_ok=True)
                os.rename(own / path, target)
            records |= part.files
            shutil.rmtree(own, ignore_errors=True)
        return records

    @contextlib.contextmanager
    def committing(self) -> Iterator[None]:
        """Afterwards, the others know how the commit inside ended."""
        try:
            yield
        except Exception as error:
            if not self._heard:
                self._group.gather("part")
            failure = Report(str(error), isinstance(error, CheckpointWriteError))
            self._group.broadcast("committed", asdict(failure))
            raise
        self._group.broadcast("committed")


def contribute(group: Group, directory: Path, snapshot: Snapshot) -> None:
    """Write this process's part, and wait until process 0 has committed.

    Args:
        group: The processes.
        directory: The checkpoint directory.
        snapshot: The part.

    Raises:
        CheckpointWriteError: It was not committed; earlier checkpoints are intact.
        PeerLostError: Process 0 is gone.
        ResilientError: The processes differ in what all should have.
    """
    path = directory / layout.part_name(str(snapshot.staging), group.index)
    mine: Exception | None = None
    try:
        with commit.part(path, snapshot.progress) as staging:
            state, place = snapshot.write_state(staging.path), os.fspath(staging.path)
            tensors = snapshot.tensors.write(place, snapshot.part, below=VARIABLES)
            files = staging.seal([*state, *tensors])
        digests = snapshot.tensors.digests(snapshot.part)
        report = Report(files=files, digests=digests)
    except Exception as error:
        text = str(error) if isinstance(error, ResilientError) else repr(error)
        where = f"In process {group.index} of {group.count}"
        mine, report = error, Report(f"{where}: {text}")
    group.gather("part", asdict(report))
    said = group.broadcast("committed")
    if mine is None and said is None:
        return
    shutil.rmtree(path, ignore_errors=True)
    if mine is not None:
        raise mine
    failure = from_json(Report, said)
    raise (CheckpointWriteError if failure.of_disk else ResilientError)(
        str(failure.error)
    )


def _require_alike(digests: Sequence[Mapping[str, str]]) -> None:
    """Raise if processes have different weights: they did not train one model."""
    first: dict[str, str] = {}
    others = [
        rank
        for rank, of_rank in enumerate(digests)
        if any(first.setdefault(piece, x) != x for piece, x in of_rank.items())
    ]
    if others:
        raise ResilientError(
            "The ranks have different weights or optimizer states: part of the model "
            "is trained without averaging its gradients.",
            received=f"ranks {others} differ from the ranks before them",
            hint="Train through Keras's optimizers, change weights the same way in "
            "all ranks (in callbacks, too), and start ranks that share one replica "
            "with the same seed (keras.utils.set_random_seed).",
        )
