"""Writes a file completely, or not at all."""

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from resilient.errors import CheckpointWriteError, ResilientError, message
from resilient.storage import files
from resilient.storage.layout import MANIFEST
from resilient.storage.refusals import disk_error


def require_free(target: Path, *, overwrite: bool) -> None:
    """Refuse an existing target, unless it may be replaced, and any in a checkpoint.

    Raises:
        FileExistsError: It exists, or is in a checkpoint.
        FileNotFoundError: There is no directory to put it in.
    """
    if not os.path.isdir(target.parent):  # a path may also be too long to be one
        raise FileNotFoundError(
            message(
                "The target's directory does not exist.",
                received=os.fspath(target.parent),
                hint="Create it, or choose another target.",
            )
        )
    hint = "Choose another target."
    if os.path.isdir(target):
        problem = "The target is a directory."
    elif any((above / MANIFEST).is_file() for above in target.parents):
        problem = "The target is in a checkpoint, to which nothing may be added."
    elif os.path.lexists(target) and not overwrite:
        problem = "The target already exists."
        hint = (
            "Choose another target, or replace this one with overwrite=True "
            "(on the command line: --force)."
        )
    else:
        return
    received = os.fspath(target)
    raise FileExistsError(message(problem, received=received, hint=hint))


@contextlib.contextmanager
def staged(target: Path, ending: str, *, overwrite: bool) -> Iterator[Path]:
    """A path beside the target to write to, which is renamed at the end.

    Args:
        target: What it is renamed to.
        ending: Of the path's name.
        overwrite: Whether the target may be replaced.

    Raises:
        CheckpointWriteError: The file system failed; the target is unchanged.
        FileExistsError: Somebody else created the target meanwhile.
    """
    beside = target.with_name(f".tmp-{uuid.uuid4().hex[:12]}{ending}")
    try:
        yield beside
        files.sync(beside)
        require_free(target, overwrite=overwrite)
        os.replace(beside, target)
        files.sync(target.parent)
    except (ResilientError, FileExistsError):
        raise
    except Exception as error:
        number = disk_error(error)
        if number is None:
            raise
        raise CheckpointWriteError(
            f"The export cannot be written: {os.strerror(number)}.",
            received=f"{target}: {type(error).__name__}: {error}",
            hint="Free some space there, or choose another target.",
        ) from error
    finally:
        with contextlib.suppress(OSError, ValueError):  # as those above, of this path
            beside.unlink(missing_ok=True)
