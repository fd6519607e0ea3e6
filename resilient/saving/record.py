"""What is inside a checkpoint: ``run.json``, ``data/`` and ``variables/``.

Composed when a snapshot is taken, written while training goes on, read back when a run
resumes. Everything that is not a tensor is JSON; every tensor is in ``variables/``, in
the backend's own format.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeGuard, TypeVar

import numpy as np

from resilient.backends.base import ALONE, Backend, Part, Snapshot
from resilient.errors import CorruptCheckpointError, NotSupportedError
from resilient.saving import reshard
from resilient.saving.run_json import ImportRun, RunJson, decoded, encoded
from resilient.serialization import Encoded
from resilient.serialization.json_values import decode, encode
from resilient.serialization.position import Positions
from resilient.serialization.schema import from_json, to_json
from resilient.storage.checkpoint import Checkpoint, Reader

R_co = TypeVar("R_co", bound=RunJson, covariant=True)

# Of a checkpoint that is of no data.
NOWHERE = encode(to_json(Positions()), {}, "data")

_RUN = "run.json"
_VARIABLES = "variables"


@dataclass(frozen=True)
class SavedState(Generic[R_co]):
    """One process's part of a checkpoint, in memory.

    Attributes:
        run: All that is neither a position nor a tensor.
        position: Where the data is, encoded.
        tensors: Every tensor, by name.
    """

    run: R_co
    position: Encoded
    tensors: Mapping[str, Any]

    def positions(self) -> Positions:
        """Where the data is.

        Raises:
            CorruptCheckpointError: It is told otherwise than a checkpoint does.
        """
        with _malformed("the position of the data"):
            return from_json(Positions, decode(self.position, self.tensors))


# A verified checkpoint and what is in it.
Loaded = tuple[Checkpoint, SavedState[RunJson]]


def is_of(saved: SavedState[Any], kind: type[R_co]) -> TypeGuard[SavedState[R_co]]:
    """Whether a checkpoint is of this kind of run."""
    return isinstance(saved.run, kind)


@dataclass(frozen=True)
class PendingCheckpoint:
    """One process's part of a checkpoint that is yet to be written.

    Attributes:
        run: As in ``SavedState``; training changes nothing in it any more.
        position: The same.
        snapshot: The tensors.
        part: Which part it is.
    """

    run: RunJson
    position: Encoded
    snapshot: Snapshot
    part: Part = ALONE

    def write(self, directory: str, ready: Callable[[], None]) -> None:
        """Fill a staging directory; committing it is the store's business.

        Args:
            directory: Which exists and is empty.
            ready: Called before tensors are written; returns when all processes are
                about to.
        """
        root = Path(directory)
        run, position = _paths(self.part)
        for path, content in ((run, encoded(self.run)), (position, self.position)):
            (root / path).parent.mkdir(exist_ok=True)
            text = json.dumps(content, allow_nan=False)
            (root / path).write_text(text, encoding="utf-8")
        (root / _VARIABLES).mkdir()
        ready()
        self.snapshot.write(str(root / _VARIABLES), self.part)

    def release(self) -> None:
        """Let go of what the snapshot holds."""
        self.snapshot.release()


def reader(backend: Backend, part: Part = ALONE) -> Reader[SavedState[RunJson]]:
    """Reads a process's part of checkpoints in the format of this backend."""
    compares = backend.compares and f"{_VARIABLES}/{backend.compares}"
    return Reader(partial(_read, backend, part), compares)


def reader_of_all(backend: Backend) -> Reader[SavedState[RunJson]]:
    """Reads what all processes had, as the one replica of one process would have it.

    Not where they were in their data, nor their random state: those of process 0.
    """
    compares = backend.compares and f"{_VARIABLES}/{backend.compares}"
    return Reader(partial(_read_all, backend), compares)


def _paths(part: Part) -> tuple[str, str]:
    """Where a part's run and its position are."""
    run = f"run/{part.name}.json" if part.index else _RUN
    return run, f"data/{part.name}.json"


def _read(backend: Backend, part: Part, checkpoint: Checkpoint) -> SavedState[RunJson]:
    """Read what a process needs, whoever saved it.

    Raises:
        CorruptCheckpointError: Tensors and their list in ``run.json`` disagree.
        DataNotResumableError: Another number of processes has no position in the data.
    """
    count = _processes(checkpoint)
    mine = part if count == part.count else Part(0, count)
    found = _read_part(backend, mine, checkpoint)
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
    others = [_read_part(backend, Part(k, count), checkpoint) for k in numbers]
    if count != part.count:
        found = SavedState(*reshard.reshard_processes([found, *others]))
    tensors = reshard.ReplicaRemap(
        {n: t for each in (*others, found) for n, t in each.tensors.items()},
        saved=saved,
        live=part.replicas,
    )
    return SavedState(found.run, found.position, tensors)


def _read_all(backend: Backend, checkpoint: Checkpoint) -> SavedState[RunJson]:
    count = _processes(checkpoint)
    first, *others = (
        _read_part(backend, Part(k, count), checkpoint) for k in range(count)
    )
    tensors = reshard.ReplicaRemap(
        {n: t for each in (*others, first) for n, t in each.tensors.items()},
        saved=first.run.replicas,
        live=1,
    )
    return SavedState(first.run, first.position, tensors)


def _processes(checkpoint: Checkpoint) -> int:
    return sum(path.startswith("data/process-") for path in checkpoint.files)


def _read_part(
    backend: Backend, part: Part, checkpoint: Checkpoint
) -> SavedState[RunJson]:
    paths = [checkpoint.path / path for path in _paths(part)]
    with _malformed(str(paths[0])):
        run = decoded(json.loads(paths[0].read_text(encoding="utf-8")))
    with _malformed(str(paths[1])):
        position = json.loads(paths[1].read_text(encoding="utf-8"))
    tensors = backend.read(str(checkpoint.path / _VARIABLES), part)
    expected = set(run.tensors)
    if not expected <= set(tensors):
        raise CorruptCheckpointError(
            f"{checkpoint.path} does not hold the tensors that it lists.",
            received=f"missing: {sorted(expected - set(tensors))}, "
            f"unexpected: {sorted(set(tensors) - expected)}",
            hint="Resume from another step, for example "
            "resume=<step> with one that `resilient ls` shows.",
        )
    # What is no variable is needed whole.
    own = {name: np.asarray(tensors[name]) for name in run.arrays}
    return SavedState(run, position, {**tensors, **own})


@contextlib.contextmanager
def _malformed(what: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:  # no JSON, no text, or not as our schema has it
        raise CorruptCheckpointError(
            f"{what} is not what a checkpoint of this version holds.",
            received=str(error),
            hint="Resume from another step, for example resume=<step> with one that "
            "`resilient ls` shows.",
        ) from error
