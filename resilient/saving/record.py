"""The contents of a checkpoint: ``run.json``, ``data/`` and ``variables/``.

Composed when a snapshot is taken, written while training continues, read when a run
resumes. Everything that is not a tensor is JSON; every tensor is in ``variables/``, in
the backend's own format.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeGuard, TypeVar

from resilient.backends.base import ALONE, Backend, Part, Snapshot
from resilient.errors import (
    CheckpointMismatchError,
    NotSupportedError,
)
from resilient.progress import Progress
from resilient.saving import other_backend, reshard
from resilient.saving.part_files import (
    VARIABLES,
    malformed,
    paths,
    processes,
    read_part,
    readable,
)
from resilient.saving.run_json import (
    FitRun,
    ImportRun,
    LoopRun,
    RunJson,
    VariablesRun,
    decoded,
    encoded,
)
from resilient.saving.unchanged import Unchanged
from resilient.serialization import Encoded
from resilient.serialization.decoding import decode
from resilient.serialization.json_values import encode
from resilient.serialization.position import Positions
from resilient.serialization.schema import from_json, to_json
from resilient.storage.checkpoint import Checkpoint, Reader
from resilient.storage.file_record import FileRecord
from resilient.storage.store import Store

if TYPE_CHECKING:
    from resilient.state.variables import Leaf

# Writes tensors into a staging directory, and returns as ``commit.Write``.
WriteTensors = Callable[[Snapshot, str], dict[str, FileRecord]]

R = TypeVar("R", bound=RunJson)
R_co = TypeVar("R_co", bound=RunJson, covariant=True)

# The position in a checkpoint without data.
NOWHERE = encode(to_json(Positions()), {}, "data")

_SAVED_BY: Mapping[type[RunJson], str] = {
    FitRun: "resilient.fit",
    LoopRun: "resilient.Run",
    VariablesRun: "resilient.Checkpoints",
    ImportRun: "an import",
}


@dataclass(frozen=True)
class SavedState(Generic[R_co]):
    """One process's part of a checkpoint, in memory.

    Attributes:
        run: Everything that is neither a position nor a tensor.
        position: The position of the data, encoded.
        tensors: Every tensor, by name.
        saver: The backend that saved it, if different from this process's.
    """

    run: R_co
    position: Encoded
    tensors: Mapping[str, Any]
    saver: str | None = None

    def positions(self) -> Positions:
        """Where the data is.

        Raises:
            CorruptCheckpointError: It does not follow the schema.
        """
        with malformed("the position of the data"):
            found = from_json(Positions, decode(self.position, self.tensors))
        return found if self.saver is None else found.drawn_by(self.saver)

    def taken_by(self, live: "Sequence[Leaf]") -> "SavedState[R_co]":
        """The same, with variables cast to the dtypes of these."""
        if self.saver is None:
            return self
        saved = self.run.variables
        from resilient.state import other_dtypes

        run = replace(self.run, variables=other_dtypes.layout(saved, live))
        tensors = other_dtypes.Converted(self.tensors, saved, live)
        return replace(self, run=run, tensors=tensors)


# A verified checkpoint and its contents.
Loaded = tuple[Checkpoint, SavedState[RunJson]]


def is_of(saved: SavedState[Any], kind: type[R_co]) -> TypeGuard[SavedState[R_co]]:
    """Whether a checkpoint is of this kind of run."""
    return isinstance(saved.run, kind)


def of_kind(found: Loaded, kind: type[R]) -> tuple[Checkpoint, SavedState[R]]:
    """The same checkpoint, if it is of this kind of run.

    Raises:
        CheckpointMismatchError: It is of a different kind.
    """
    checkpoint, saved = found
    if is_of(saved, kind):
        return checkpoint, saved
    raise CheckpointMismatchError(
        f"{_SAVED_BY[kind]} cannot resume what {_SAVED_BY[type(saved.run)]} saved.",
        received=checkpoint.path,
        hint="Use another checkpoint_dir: each run needs its own.",
    )


@dataclass(frozen=True)
class PendingCheckpoint:
    """One process's part of a checkpoint that has not been written yet.

    Attributes:
        run: As in ``SavedState``; training no longer changes it.
        position: Likewise.
        snapshot: The tensors.
        part: Which part it is.
    """

    run: RunJson
    position: Encoded
    snapshot: Snapshot
    part: Part = ALONE

    def write(
        self,
        directory: str,
        ready: Callable[[], None] = lambda: None,
        tensors: WriteTensors | None = None,
    ) -> dict[str, FileRecord]:
        """Fill a staging directory; the store commits it.

        Args:
            directory: An existing, empty directory.
            ready: Called before writing tensors; returns when all processes are ready
                to.
            tensors: Writes those of a single process, see ``unchanged``.

        Returns:
            As ``commit.Write``.
        """
        run, position = paths(self.part)
        for path, raw in (
            (run, readable(run, encoded(self.run), decoded)),
            (position, readable(position, self.position)),
        ):
            if folder := os.path.dirname(path):
                os.mkdir(os.path.join(directory, folder))
            with open(os.path.join(directory, path), "wb") as file:
                file.write(raw)
        variables = os.path.join(directory, VARIABLES)
        os.mkdir(variables)
        ready()
        if tensors is not None and self.part.count == 1:
            return tensors(self.snapshot, directory)
        self.snapshot.write(variables, self.part)
        return {}

    def release(self) -> None:
        """Free what the snapshot holds."""
        self.snapshot.release()


def commit(
    store: Store,
    progress: Progress,
    run: RunJson,
    tensors: Mapping[str, Any],
    backend: Backend,
    *,
    unchanged: Unchanged | None = None,
) -> Checkpoint:
    """Compose a checkpoint of tensors alone, without data."""
    from resilient.state import fingerprint

    content = PendingCheckpoint(run, NOWHERE, backend.snapshot(tensors))
    write = None if unchanged is None else partial(unchanged.write, progress.step)
    checkpoint = store.commit(
        progress,
        partial(content.write, tensors=write),
        metrics={},
        finished=False,
        environment=fingerprint.environment(backend),
    )
    if unchanged is not None:
        unchanged.committed(checkpoint)
    return checkpoint


def reader(
    backend: Backend,
    part: Part = ALONE,
    *,
    to_look: bool = False,
    elsewhere: bool = False,
) -> Reader[SavedState[RunJson]]:
    """Reads a process's part of checkpoints in the format of this backend.

    Args:
        backend: The backend that saved.
        part: Which part; if the number of processes or replicas has changed, what these
            resume with.
        to_look: Only inspect: processes may differ in position and other state of their
            own, and that of process 0 is used.
        elsewhere: Also read those that another backend saved.
    """
    return Reader(partial(_read, backend, part, to_look, elsewhere))


def _read(
    backend: Backend, part: Part, to_look: bool, elsewhere: bool, checkpoint: Checkpoint
) -> SavedState[RunJson]:
    """Read what this process needs, whichever processes saved it.

    Raises:
        CheckpointMismatchError: Another backend saved it, which is not damage.
        CorruptCheckpointError: A file is missing, not as its schema says, or does not
            fit the others.
        DataNotResumableError: For a different number of processes, the data has no
            position.
    """
    saver = other_backend.saver(backend, checkpoint, allowed=elsewhere)
    if saver is not None:
        return _of_another_backend(backend, part, checkpoint, saver)
    count = processes(checkpoint)
    mine = part if count == part.count else Part(0, count)
    found = SavedState(*read_part(backend, mine, checkpoint))
    if is_of(found, ImportRun) and part.count > 1:
        raise NotSupportedError(
            "An imported checkpoint can only be resumed by a single process.",
            received=f"{checkpoint.path}, {part.count} processes",
            hint="Train the first epoch in one process, then continue in several.",
        )
    saved = found.run.replicas
    if count == part.count and saved == part.replicas:
        return found
    numbers = [k for k in range(count) if k != mine.index]
    others = [
        SavedState(*read_part(backend, Part(k, count), checkpoint)) for k in numbers
    ]
    if count != part.count and not to_look:
        found = SavedState(*reshard.reshard_processes([found, *others]))
    tensors = reshard.ReplicaRemap(
        {n: t for each in (*others, found) for n, t in each.tensors.items()},
        saved=saved,
        live=part.replicas,
    )
    return SavedState(found.run, found.position, tensors)


def _of_another_backend(
    backend: Backend, part: Part, checkpoint: Checkpoint, saver: str
) -> SavedState[RunJson]:
    other_backend.require_alone(checkpoint, saver, processes(checkpoint), part)
    run, position, tensors = read_part(backend, ALONE, checkpoint, saver)
    other_backend.require_alone(checkpoint, saver, run.replicas, part)
    return SavedState(run, position, tensors, saver)
