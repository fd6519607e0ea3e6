"""The contents of a checkpoint, read when a run resumes: what ``snapshot`` wrote."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeGuard, TypeVar

import numpy as np

from resilient.backends import BACKENDS, Backend
from resilient.backends.base import ALONE, Part
from resilient.errors import (
    CheckpointMismatchError,
    NotSupportedError,
)
from resilient.saving import reshard
from resilient.saving.part_files import malformed, processes, read_part
from resilient.saving.run_json import (
    FitRun,
    ImportRun,
    LoopRun,
    RunJson,
    VariablesRun,
    require_restorable,
)
from resilient.saving.snapshot import paths
from resilient.serialization import Encoded
from resilient.serialization.decoding import decode
from resilient.serialization.position import Positions
from resilient.serialization.schema import from_json
from resilient.storage.checkpoint import Checkpoint

if TYPE_CHECKING:
    from resilient.state.variables import Leaf

R = TypeVar("R", bound=RunJson)
R_co = TypeVar("R_co", bound=RunJson, covariant=True)

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
class PartReader:
    """Reads a process's part of checkpoints in the format of a backend.

    Attributes:
        backend: The backend that saved.
        part: Which part; if the number of processes or replicas has changed, what these
            resume with.
        to_look: Only inspect: processes may differ in position and other state of their
            own, and that of process 0 is used.
        elsewhere: Also read those that another backend saved.
    """

    backend: Backend
    part: Part = ALONE
    to_look: bool = False
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
        part = self.part
        saver = self._other_saver(checkpoint)
        count = processes(checkpoint)
        if saver is not None:
            _require_alone(checkpoint, saver, count, part)
            found = self._read(ALONE, checkpoint, saver)
            _require_alone(checkpoint, saver, found.run.replicas, part)
            arrays = {name: np.asarray(each) for name, each in found.tensors.items()}
            return replace(found, tensors=arrays)
        mine = part if count == part.count else Part(0, count)
        found = self._read(mine, checkpoint)
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
        others = [self._read(Part(k, count), checkpoint) for k in numbers]
        if count != part.count and not self.to_look:
            found = SavedState(*reshard.reshard_processes([found, *others]))
        tensors = reshard.ReplicaRemap(
            {n: t for each in (*others, found) for n, t in each.tensors.items()},
            saved=saved,
            live=part.replicas,
        )
        return SavedState(found.run, found.position, tensors)

    def _read(
        self, part: Part, checkpoint: Checkpoint, saver: str | None = None
    ) -> SavedState[RunJson]:
        """One process's part, which can be restored."""
        saved_by, several = saver or self.backend.name, self.part.count > 1
        # In several processes, each takes what it needs of large variables.
        run, position, tensors = read_part(part, checkpoint, saved_by, lazy=several)
        arrays = {name: np.asarray(tensors[name]) for name in run.arrays}
        with malformed(str(checkpoint.path / paths(part)[0])):
            require_restorable(run, self.backend, arrays)
        return SavedState(run, position, tensors | arrays, saver)

    def _other_saver(self, checkpoint: Checkpoint) -> str | None:
        """The backend that saved a checkpoint, if it is another one, and may be."""
        backend, found = self.backend, checkpoint.environment.keys() & set(BACKENDS)
        if not found or backend.name in found:
            return None
        name = min(found)
        if self.elsewhere:
            return name
        raise CheckpointMismatchError(
            f"This run was trained on {name}, but this process uses {backend.name}.",
            received=str(checkpoint.path),
            hint=f"Set KERAS_BACKEND={name} to continue it exactly. Or pass "
            f'allow={{"backend"}} to continue it on {backend.name}, no longer exactly. '
            "Or take its weights there: run `resilient export DIR --to m.keras --model "
            "MODULE:FUNCTION`, and train that model in another checkpoint_dir.",
        )


def _require_alone(checkpoint: Checkpoint, saver: str, saved: int, part: Part) -> None:
    """Raise if several processes or replicas saved, or would continue."""
    live = max(part.count, part.replicas)
    if max(saved, live) > 1:
        raise NotSupportedError(
            "Only a run of one process and one replica can continue on another "
            "backend.",
            received=f"{checkpoint.path}: {saved} on {saver}, {live} now",
            hint=f"Set KERAS_BACKEND={saver} to continue it. Or continue it there in "
            "one process until the next checkpoint, and then here.",
        )
