"""Which failures of a write the file system caused, and what to do about them.

Every one becomes a ``CheckpointWriteError``, however the writing library reports it.
Other errors of the writing function pass through unchanged.
"""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from resilient.errors import CheckpointWriteError, ResilientError
from resilient.progress import Progress
from resilient.storage.files import NO_DAMAGE

# Errors of a full or failing disk. Backends report them as TensorFlow's
# ResourceExhaustedError, Orbax's ValueError or torch's RuntimeError, and only in the
# text.
_DISK_ERRORS = {
    errno.ENOSPC: "Free some space, or keep fewer checkpoints.",
    errno.EDQUOT: "Free some of your quota, or keep fewer checkpoints.",
    errno.EFBIG: "Raise the limit on the size of files (`ulimit -f`).",
    errno.EROFS: "Choose a checkpoint_dir on a writable file system.",
    errno.EACCES: "Allow this user to write there, or choose another checkpoint_dir.",
    errno.EPERM: "Allow this user to write there, or choose another checkpoint_dir.",
    errno.EMFILE: NO_DAMAGE[errno.EMFILE],
    errno.ENFILE: NO_DAMAGE[errno.ENFILE],
    errno.EIO: "Check the disk: the system log may say more.",
    errno.ESTALE: "Check the network file system; it may have to be mounted again.",
    errno.ENOENT: "Something removed the directory: make sure that nothing does so "
    "during training.",
    errno.ENOTDIR: "Something replaced the directory: make sure that nothing does so "
    "during training.",
}
_FULL_OR_FAILING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
_TORCH_WRITE_FAILED = ("PytorchStreamWriter failed", "file write failed")


@contextlib.contextmanager
def explained(staging: Path, progress: Progress) -> Iterator[None]:
    """Turn every failure of the file system into a CheckpointWriteError."""
    try:
        yield
    except ResilientError:  # explains itself
        raise
    except Exception as error:
        number = disk_error(error)
        if number is None:
            raise
        raise _write_error(staging, progress, number, error) from error


def disk_error(error: BaseException) -> int | None:
    """The errno behind an exception, if the file system caused it."""
    if isinstance(error, OSError):
        return error.errno or errno.EIO
    text = str(error)
    for number in _DISK_ERRORS:
        if os.strerror(number) in text:
            return number
    if any(phrase in text for phrase in _TORCH_WRITE_FAILED):
        return errno.EIO
    if error.__cause__ is not None:
        return disk_error(error.__cause__)
    if error.__context__ is not None and not error.__suppress_context__:
        number = disk_error(error.__context__) or 0
        # A file that was looked up and is missing does not explain another error.
        return number if number in _FULL_OR_FAILING else None
    return None


def _write_error(
    staging: Path, progress: Progress, number: int, error: Exception
) -> CheckpointWriteError:
    path = error.filename if isinstance(error, OSError) else None
    code = errno.errorcode.get(number, str(number))
    return CheckpointWriteError(
        f"The checkpoint at {progress} cannot be written: {os.strerror(number)} "
        f"({code}). Earlier checkpoints are intact.",
        received=f"{path or staging}: {type(error).__name__}: {error}",
        hint=_DISK_ERRORS.get(number, "Check the file system of this directory."),
    )
