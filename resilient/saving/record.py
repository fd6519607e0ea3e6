"""Reads and checks a checkpoint, part by part: what ``snapshot`` wrote.

A checkpoint is data, whoever wrote it, and a malformed file counts as damage. Only
files that the manifest lists are opened.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeGuard, TypeVar

import numpy as np

from resilient import backends
from resilient.backends import BACKENDS, Backend
from resilient.backends.base import ALONE, Part
from resilient.errors import (
    ANOTHER_STEP,
    CheckpointMismatchError,
    CorruptCheckpointError,
    NotSupportedError,
    ResilientError,
)
from resilient.saving import reshard
from resilient.saving.run_json import ImportRun, RunJson, decoded
from resilient.saving.snapshot import UNCHANGED, VARIABLES, paths
from resilient.serialization import Encoded
from resilient.serialization.json_values import decode
from resilient.serialization.position import Positions
from resilient.serialization.schema import from_json, parse
from resilient.storage.checkpoint import Checkpoint

if TYPE_CHECKING:
    from resilient.state.variables import Leaf

R = TypeVar("R", bound=RunJson)
R_co = TypeVar("R_co", bound=RunJson, covariant=True)


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
            DataNotResumableError: It cannot be continued from on this backend.
        """
        with malformed("the position of the data"):
            found = from_json(Positions, decode(self.position, self.tensors))
        return found if self.saver is None else found.switched_from(self.saver)

    def taken_by(self, live: "Sequence[Leaf]") -> "SavedState[R_co]":
        """The same, with variables cast to the dtypes of these."""
        if self.saver is None:
            return self
        from resilient.state.layouts import cast

        variables, tensors = cast(self.run.variables, self.tensors, live)
        run = replace(self.run, variables=variables)
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
        f"{kind.saved_by} cannot resume what {saved.run.saved_by} saved.",
        received=checkpoint.path,
        hint="Use another checkpoint_dir: each run needs its own.",
    )


@dataclass(frozen=True)
class PartReader:
    """Reads a process's part of checkpoints in the format of a backend.

    Attributes:
        backend: The backend that trains. None only inspects, whichever saved: processes
            may differ in position and other state of their own, and that of process 0
            is used.
        part: Which part; if the number of processes or replicas has changed, what these
            resume with.
        elsewhere: Also read those that another backend saved.
    """

    backend: Backend | None = None
    part: Part = ALONE
    elsewhere: bool = False

    def __call__(self, checkpoint: Checkpoint) -> SavedState[RunJson]:
        """Read what this process needs, whichever processes saved it.

        Raises:
            CheckpointMismatchError: Another backend saved it, which is not damage.
            CorruptCheckpointError: A file is missing, not as its schema says, or does
                not fit the others.
            DataNotResumableError: For a different number of processes, the data has no
                position.
        """
        part, count = self.part, processes(checkpoint)
        if self.backend is not None and saver_of(checkpoint) != self.backend.name:
            return self._of_another_backend(checkpoint, self.backend.name)
        mine = part if count == part.count else Part(0, count)
        # In several processes, each takes what it needs of large variables.
        found = read_part(mine, checkpoint, lazy=part.count > 1)
        if is_of(found, ImportRun) and part.count > 1:
            raise NotSupportedError(
                "An imported checkpoint can only be resumed by a single process.",
                received=f"{checkpoint.path}, {part.count} processes",
                hint="Train the first epoch in one process, then continue in several.",
            )
        saved = found.run.replicas
        if count == part.count and saved == part.replicas:
            return found
        others = [
            read_part(Part(k, count), checkpoint, lazy=part.count > 1)
            for k in range(count)
            if k != mine.index
        ]
        if count != part.count and self.backend is not None:
            found = reshard.reshard_processes([found, *others])
        tensors: Mapping[str, Any] = {
            n: t for each in (*others, found) for n, t in each.tensors.items()
        }
        if saved != part.replicas:
            tensors = reshard.ReplicaRemap(tensors, saved)
        return replace(found, tensors=tensors)

    def _of_another_backend(
        self, checkpoint: Checkpoint, ours: str
    ) -> SavedState[RunJson]:
        """A checkpoint of one process, if it may be read here."""
        saver, part = saver_of(checkpoint), self.part
        if not self.elsewhere:
            raise CheckpointMismatchError(
                f"This run was trained on {saver}, but this process uses {ours}.",
                received=str(checkpoint.path),
                hint=f"Set KERAS_BACKEND={saver} to continue it exactly. Or pass "
                f'allow={{"backend"}} to continue it on {ours}, no longer exactly. Or '
                "take its weights there: run `resilient export DIR --to m.keras "
                "--model MODULE:FUNCTION`, and train that model in another "
                "checkpoint_dir.",
            )
        saved, live = processes(checkpoint), max(part.count, part.replicas)
        found = read_part(ALONE, checkpoint) if saved == 1 else None
        if found is not None:
            saved = found.run.replicas
        if found is None or max(saved, live) > 1:
            raise NotSupportedError(
                "Only a run of one process and one replica can continue on another "
                "backend.",
                received=f"{checkpoint.path}: {saved} on {saver}, {live} now",
                hint=f"Set KERAS_BACKEND={saver} to continue it. Or continue it there "
                "in one process until the next checkpoint, and then here.",
            )
        return replace(found, saver=saver)


def processes(checkpoint: Checkpoint) -> int:
    """How many processes saved."""
    return sum(name.startswith("data/process-") for name in checkpoint.files)


def saver_of(checkpoint: Checkpoint) -> str:
    """The backend that saved a checkpoint.

    Raises:
        NotSupportedError: The manifest does not say.
    """
    for name in BACKENDS:
        if name in checkpoint.environment:
            return name
    raise NotSupportedError(
        "The checkpoint does not say which backend saved it.",
        received=f"{checkpoint.path}: {dict(checkpoint.environment)}",
        hint="Use a checkpoint that fit, Run or Checkpoints saved.",
    )


def read_part(
    part: Part, checkpoint: Checkpoint, *, lazy: bool = False
) -> SavedState[RunJson]:
    """Read what a process saved: its run, its position in the data, and its tensors.

    Args:
        part: The process's part.
        checkpoint: The checkpoint.
        lazy: Whether large variables may stay on the disk: ``numpy.asarray`` reads one.

    Raises:
        BackendNotAvailableError: A library that reads its format is missing.
        CorruptCheckpointError: A file is missing or violates its schema.
    """
    of_run, of_data = paths(part)
    saver, variables = saver_of(checkpoint), checkpoint.path / VARIABLES
    with malformed(str(checkpoint.path)):
        run = decoded(parse(checkpoint.content(of_run)))
        position = parse(checkpoint.content(of_data))
        found = backends.read(saver, str(variables), part, lazy=lazy)
        unchanged = f"{VARIABLES}/{UNCHANGED}/"
        if any(name.startswith(unchanged) for name in checkpoint.files):
            others = str(variables / UNCHANGED)
            found |= backends.read(saver, others, part, lazy=lazy)
        found |= {name: np.asarray(found[name]) for name in run.arrays}
    return SavedState(run, position, found)


@contextlib.contextmanager
def malformed(what: str) -> Iterator[None]:
    """Turn any exception from decoding into an error that says what is malformed."""
    try:
        yield
    except (ResilientError, MemoryError, OSError):
        raise
    except Exception as error:  # of any class, depending on the bytes
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise CorruptCheckpointError(
            f"{what} does not match the checkpoint format of this version.",
            received=f"{kind}{error}"[:1000],
            hint=ANOTHER_STEP,
        ) from error
