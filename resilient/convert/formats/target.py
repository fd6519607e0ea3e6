"""A file or directory that comes into being whole, or not at all."""

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from resilient.errors import CheckpointWriteError, ResilientError, message
from resilient.storage import commit, layout


def require_free(target: Path, *, overwrite: bool) -> None:
    """Refuse a target that exists, unless it may be replaced.

    Raises:
        FileExistsError: It exists.
        FileNotFoundError: There is no directory to put it in.
    """
    if not target.parent.is_dir():
        raise FileNotFoundError(
            message(
                "There is no directory to write into.",
                received=os.fspath(target.parent),
                hint="Make it, or choose another target.",
            )
        )
    if os.path.lexists(target) and not overwrite:
        raise FileExistsError(
            message(
                "The target exists already.",
                received=os.fspath(target),
                hint=(
                    "Choose another one, or say that it may be replaced: "
                    "overwrite=True, "
                    "on the command line --force."
                ),
            )
        )


@contextlib.contextmanager
def staged(target: Path, *, overwrite: bool) -> Iterator[Path]:
    """A path beside the target to write to: in the end it is renamed.

    Raises:
        CheckpointWriteError: The file system failed; the target is as it was.
        FileExistsError: Meanwhile somebody else made the target.
    """
    beside = target.with_name(f".tmp-{uuid.uuid4().hex[:12]}.{target.name}")
    try:
        yield beside
        _sync(beside)
        require_free(target, overwrite=overwrite)
        _publish(beside, target)
    except (ResilientError, FileExistsError):
        raise
    except Exception as error:
        number = commit.disk_error(error)
        if number is None:
            raise
        raise CheckpointWriteError(
            f"The export cannot be written: {os.strerror(number)}.",
            received=f"{target}: {type(error).__name__}: {error}",
            hint="Make room there, or choose another target.",
        ) from error
    finally:
        if os.path.lexists(beside):
            commit.delete(beside)


def _sync(path: Path) -> None:
    if path.is_dir():
        for inner in path.iterdir():
            _sync(inner)
    layout.sync(path)


def _publish(beside: Path, target: Path) -> None:
    former = None
    if os.path.lexists(target) and (target.is_dir() or beside.is_dir()):
        # Only a file takes a file's place; what was there steps aside.
        former = beside.with_name(f"{beside.name}.old")
        os.rename(target, former)
    try:
        os.rename(beside, target)
    except BaseException:
        if former is not None:
            os.rename(former, target)
        raise
    layout.sync(target.parent)
    if former is not None:
        shutil.rmtree(former) if former.is_dir() else former.unlink()
