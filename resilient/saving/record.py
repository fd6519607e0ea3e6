"""Reads and checks a checkpoint, part by part: what ``snapshot`` wrote.

A checkpoint is data, whoever wrote it, and a malformed file counts as damage. Only
files that the manifest lists are opened.
"""

import contextlib
import re
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
from resilient.saving.run_json import ImportRun, RunJson, decoded, require_restorable
from resilient.saving.snapshot import UNCHANGED, VARIABLES, paths
from resilient.serialization import Encoded
from resilient.serialization.classes import NotKnownError
from resilient.serialization.decoding import check, decode, outline
from resilient.serialization.position import Positions
from resilient.serialization.schema import MalformedError, from_json, parse
from resilient.storage.checkpoint import Checkpoint

if TYPE_CHECKING:
    from resilient.state.variables import Leaf

R = TypeVar("R", bound=RunJson)
R_co = TypeVar("R_co", bound=RunJson, covariant=True)

_REPLICA = re.compile(r"\.replica_\d+\Z")


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
        f"{kind.saved_by} cannot resume what {saved.run.saved_by} saved.",
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
            found = reshard.reshard_processes([found, *others])
        tensors = reshard.ReplicaRemap(
            {n: t for each in (*others, found) for n, t in each.tensors.items()},
            saved=saved,
            live=part.replicas,
        )
        return replace(found, tensors=tensors)

    def _read(
        self, part: Part, checkpoint: Checkpoint, saver: str | None = None
    ) -> SavedState[RunJson]:
        """One process's part, which can be restored."""
        # In several processes, each takes what it needs of large variables.
        lazy, saved_by = self.part.count > 1, saver or self.backend.name
        found = read_part(part, checkpoint, saved_by, lazy=lazy)
        arrays = {n: np.asarray(found.tensors[n]) for n in found.run.arrays}
        with malformed(str(checkpoint.path / paths(part)[0])):
            require_restorable(found.run, self.backend, arrays)
        return replace(found, tensors={**found.tensors, **arrays}, saver=saver)

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


def processes(checkpoint: Checkpoint) -> int:
    """How many processes saved."""
    found = {name for name in checkpoint.files if name.startswith("data/process-")}
    expected = {paths(Part(k, len(found)))[1] for k in range(len(found))}
    if not found or found != expected:
        raise CorruptCheckpointError(
            f"{checkpoint.path} does not have exactly the data of the processes that "
            "saved it.",
            received=f"missing: {_some(expected - found) or 'all'}, "
            f"unexpected: {_some(found - expected) or 'none'}",
            hint=ANOTHER_STEP,
        )
    return len(found)


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
    part: Part, checkpoint: Checkpoint, saver: str, *, lazy: bool = False
) -> SavedState[RunJson]:
    """Read what a process saved: its run, its position in the data, and its tensors.

    Args:
        part: The process's part.
        checkpoint: The checkpoint.
        saver: The backend that saved it.
        lazy: Whether large tensors may stay on the disk: ``numpy.asarray`` reads one.

    Raises:
        BackendNotAvailableError: A library that reads its format is missing.
        CorruptCheckpointError: A file is missing, violates its schema, or does not
            match the others.
    """
    of_run, of_data = paths(part)
    with malformed(str(checkpoint.path / of_run)):
        run = decoded(parse(checkpoint.content(of_run)))
    with malformed(str(checkpoint.path / of_data)):
        position = parse(checkpoint.content(of_data))
    tensors = _tensors(part, checkpoint, saver, lazy=lazy)
    _require_complete(run, set(tensors), checkpoint)
    arrays = {name: tensors[name] for name in run.arrays}
    with malformed(str(checkpoint.path / of_run)):
        check(vars(run), arrays)
    with malformed(str(checkpoint.path / of_data)):
        from_json(Positions, outline(position, arrays))
    return SavedState(run, position, tensors)


def _tensors(
    part: Part, checkpoint: Checkpoint, saver: str, *, lazy: bool
) -> dict[str, Any]:
    """The tensors that changed, and those that did not."""
    variables = checkpoint.path / VARIABLES
    found = backends.read(saver, str(variables), part, lazy=lazy)
    inside = f"{VARIABLES}/{UNCHANGED}/"
    if not any(name.startswith(inside) for name in checkpoint.files):
        return found
    others = backends.read(saver, str(variables / UNCHANGED), part, lazy=lazy)
    if twice := found.keys() & others.keys():
        raise CorruptCheckpointError(
            f"{checkpoint.path} holds tensors twice.",
            received=_some(twice),
            hint=ANOTHER_STEP,
        )
    return found | others


def _require_complete(run: RunJson, there: set[str], checkpoint: Checkpoint) -> None:
    """Raise if ``run.json`` names missing tensors."""
    expected = {*run.tensors, *run.arrays}
    of_replicas = {_REPLICA.sub("", name) for name in there}
    missing = expected - there
    missing |= {v["name"] for v in run.variables} - there - of_replicas
    if missing:
        raise CorruptCheckpointError(
            f"{checkpoint.path} does not hold the tensors that it lists.",
            received=f"missing: {_some(missing)}, "
            f"unexpected: {_some(there - expected) or 'none'}",
            hint=ANOTHER_STEP,
        )


def _some(names: set[str]) -> str:
    """A few names for a message."""
    shown = [name[:200] for name in sorted(names)[:10]]
    return ", ".join(shown) + (", ..." if len(names) > len(shown) else "")


@contextlib.contextmanager
def malformed(what: str) -> Iterator[None]:
    """Turn any exception from decoding into an error that says what is malformed."""
    try:
        yield
    except (MalformedError, NotKnownError) as error:
        raise _not_ours(what, error.received) from error
    except (ResilientError, MemoryError, OSError):
        raise
    except Exception as error:  # of any class, depending on the bytes
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise _not_ours(what, f"{kind}{error}") from error


def _not_ours(what: str, why: str | None) -> CorruptCheckpointError:
    return CorruptCheckpointError(
        f"{what} does not match the checkpoint format of this version.",
        received=None if why is None else why[:1000],
        hint=ANOTHER_STEP,
    )
