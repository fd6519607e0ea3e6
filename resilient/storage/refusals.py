"""The errors of a store that cannot provide, move or write a checkpoint."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from resilient.errors import (
    ANOTHER_STEP,
    CheckpointReadError,
    CheckpointWriteError,
    CorruptCheckpointError,
    printable,
)
from resilient.storage.files import NO_DAMAGE

LONGEST = 2000  # characters of a reason
_SURE = "make sure that nothing does so during training."

# Errors of a full or failing disk. Backends report them as TensorFlow's
# ResourceExhaustedError, TensorStore's ValueError or torch's RuntimeError, and only in
# the text.
DISK_ERRORS = {
    **NO_DAMAGE,
    errno.ENOSPC: "Free some space, or keep fewer checkpoints.",
    errno.EDQUOT: "Free some of your quota, or keep fewer checkpoints.",
    errno.EFBIG: "Raise the limit on the size of files (`ulimit -f`).",
    errno.EROFS: "Choose a checkpoint_dir on a writable file system.",
    errno.EACCES: "Allow this user to write there, or choose another checkpoint_dir.",
    errno.EPERM: "Allow this user to write there, or choose another checkpoint_dir.",
    errno.EIO: "Check the disk: the system log may say more.",
    errno.ENAMETOOLONG: "Give layers shorter names, or choose a shorter path.",
    errno.ESTALE: "Check the network file system; it may have to be mounted again.",
    errno.ENOENT: f"Something removed the directory: {_SURE}",
    errno.ENOTDIR: f"Something replaced the directory: {_SURE}",
}
_FULL_OR_FAILING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
_IN_WORDS = {os.strerror(number): number for number in DISK_ERRORS} | {
    "OOM when allocating": errno.ENOMEM,  # TensorFlow
    "can't allocate memory": errno.ENOMEM,  # torch
    "PytorchStreamWriter failed": errno.EIO,
    "file write failed": errno.EIO,
}


@contextlib.contextmanager
def unwritable(problem: str, *, received: object = None, hint: str) -> Iterator[None]:
    """Turn errors of the file system into one of ours.

    Args:
        problem: What cannot be done.
        received: Where; None: the error says it.
        hint: What to do about it.

    Raises:
        CheckpointWriteError: The file system failed inside.
    """
    try:
        yield
    except CheckpointReadError:  # explains itself
        raise
    except OSError as error:
        raise CheckpointWriteError(
            f"{problem}: {error.strerror}.", received=received or error, hint=hint
        ) from error


def of_local_copy(directory: Path) -> contextlib.AbstractContextManager[None]:
    """The same, for the local copy of a run in an object store."""
    return unwritable(
        "The local copy of the run cannot be written",
        hint=f"Free some space or allow this user to write in {directory}, or pass "
        "another local_dir.",
    )


def damaged(path: Path, reason: str) -> CorruptCheckpointError:
    """The error for one requested checkpoint."""
    step = int(path.name.removeprefix("step-"))
    return CorruptCheckpointError(
        f"The checkpoint of step {step} is damaged.",
        received=f"{path}: {printable(reason[:LONGEST])}",
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
        "The object store cannot be used right now. Nothing there was changed.",
        received=f"{where}: {error}",
        hint="Check the address, the credentials and what they allow, and the network, "
        "and run again.",
    )


def disk_error(error: BaseException) -> int | None:
    """The errno behind an exception, if the machine caused it."""
    if isinstance(error, OSError):
        return error.errno or errno.EIO
    text = str(error)
    for words, number in _IN_WORDS.items():
        if words in text:
            return number
    if error.__cause__ is not None:
        return disk_error(error.__cause__)
    if error.__context__ is not None and not error.__suppress_context__:
        number = disk_error(error.__context__) or 0
        # A file that was looked up and is missing does not explain another error.
        return number if number in _FULL_OR_FAILING else None
    return None
