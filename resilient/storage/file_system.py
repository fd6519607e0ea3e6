"""Tests before a run what the file system of a checkpoint directory can do.

Mounts of object stores, network drives and FUSE file systems lack some abilities of a
local disk. A checkpoint requires that a file can be renamed over another: where that
fails, the run is refused. Where directories cannot be renamed atomically,
``directories`` does without.
"""

import os
import shutil
from pathlib import Path

from resilient.errors import NotSupportedError
from resilient.storage import files, layout

# They rename a directory by copying and deleting its files, one by one.
_COPYING = frozenset(
    f"fuse.{name}"
    for name in ("blobfuse2", "gcsfuse", "geesefs", "goofys", "ossfs", "rclone", "s3fs")
)

_in_place: set[Path] = set()  # directories in which no directory can be renamed


def renames_directories(directory: Path) -> bool:
    """Whether renaming a directory in this one works and is atomic."""
    return directory not in _in_place


def try_out(directory: Path) -> None:
    """Find out what can be done in a checkpoint directory. Needs the lock.

    Raises:
        NotSupportedError: A file cannot be renamed, or not over another.
    """
    _in_place.discard(directory)
    place = directory / layout.probe_name()
    try:
        (place / "a").mkdir(parents=True)
        _rename_files(place / "a")
        if _kind(directory) in _COPYING or not _renames(place / "a", place / "b"):
            _in_place.add(directory)
    except OSError:  # a full disk, say: the first save will tell
        return
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _rename_files(place: Path) -> None:
    for name in ("new", "former"):
        (place / name).touch()
    try:
        os.replace(place / "new", place / "former")
    except OSError as error:
        if error.errno not in files.UNABLE:
            raise
        raise NotSupportedError(
            "The file system of the checkpoint directory cannot rename a file over "
            "another, so no checkpoint would be safe there.",
            received=error,
            hint="Choose a checkpoint_dir on another file system.",
        ) from error


def _renames(directory: Path, target: Path) -> bool:
    try:
        os.rename(directory, target)
    except OSError as error:
        if error.errno not in files.UNABLE:
            raise  # that says nothing about the file system
        return False
    return True


def _kind(directory: Path) -> str | None:
    """The type of the file system, according to Linux."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            mounts = [line.partition(" - ") for line in file]
    except FileNotFoundError:
        return None
    device = os.stat(directory).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    kinds = [kind.split()[0] for at, _, kind in mounts if at.split()[2] == number]
    return kinds[-1] if kinds else None
