"""The errors of a store that cannot provide or move a checkpoint."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

from resilient.errors import (
    ANOTHER_STEP,
    CheckpointNotFoundError,
    CheckpointReadError,
    CheckpointWriteError,
    CorruptCheckpointError,
    printable,
)
from resilient.storage import layout

_NAMED = 20  # damaged checkpoints that one message names
_LONGEST = 2000  # characters of a reason


def require_target(path: Path) -> None:
    """Raise if a checkpoint is on a disk that is not mounted.

    Raises:
        CheckpointNotFoundError: It is a link whose target is missing.
    """
    if layout.leads_nowhere(path):
        step = int(path.name.removeprefix("step-"))
        raise CheckpointNotFoundError(
            f"The checkpoint of step {step} is a link whose target is missing.",
            received=f"{path} -> {printable(os.readlink(path))}",
            hint="Mount the disk that it is on, or delete the link to use the "
            "checkpoint before it.",
        )


@contextlib.contextmanager
def of_quarantine(directory: Path) -> Iterator[None]:
    """Turn file system errors while moving checkpoints into our own error."""
    try:
        yield
    except OSError as error:
        raise CheckpointWriteError(
            f"Checkpoints cannot be moved to quarantine: {error.strerror}.",
            received=error,
            hint=f"Allow this user to write in {directory}, and remove "
            f"{layout.QUARANTINE} there if it is not a directory.",
        ) from error


@contextlib.contextmanager
def of_local_copy(directory: Path) -> Iterator[None]:
    """The same, for the local copy of a run in an object store."""
    try:
        yield
    except CheckpointReadError:
        raise
    except OSError as error:
        raise CheckpointWriteError(
            f"The local copy of the run cannot be written: {error.strerror}.",
            received=error,
            hint=f"Free some space or allow this user to write in {directory}, or pass "
            "another local_dir.",
        ) from error


def damaged(path: Path, reason: str) -> CorruptCheckpointError:
    """The error for one requested checkpoint."""
    step = int(path.name.removeprefix("step-"))
    return CorruptCheckpointError(
        f"The checkpoint of step {step} is damaged.",
        received=f"{path}: {printable(reason[:_LONGEST])}",
        hint=ANOTHER_STEP,
    )


def not_uploaded(left: str) -> CheckpointWriteError:
    """The error if training ends before its last checkpoint is uploaded."""
    return CheckpointWriteError(
        "The last checkpoint is not in the object store.",
        received=left,
        hint="Run the script again on this machine: the upload continues, and "
        "nothing is trained twice.",
    )


def unreachable(where: object, error: Exception) -> CheckpointReadError:
    """The error if nothing can be done until the object store answers."""
    return CheckpointReadError(
        "The object store cannot be read right now. Nothing there was changed.",
        received=f"{where}: {error}",
        hint="Check the address, the credentials and the network, and run again.",
    )


def none_intact(directory: Path, failed: Mapping[Path, str]) -> CorruptCheckpointError:
    """The error if every checkpoint is damaged, with the reasons by path."""
    lines = "".join(
        f"\n  {path.relative_to(directory)}: {printable(reason[:_LONGEST])}"
        for path, reason in islice(failed.items(), _NAMED)
    )
    if len(failed) > _NAMED:
        lines += f"\n  and {len(failed) - _NAMED:,} more"
    return CorruptCheckpointError(
        "No checkpoint in this directory is intact.",
        received=f"{directory}{lines}",
        hint="Restore a good copy under its own name, choose another step, or "
        'start over with resume="never" or in another directory. Damaged '
        f"checkpoints are kept in {directory / layout.QUARANTINE}.",
    )
