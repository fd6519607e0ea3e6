"""Moves and deletes whole directories so that a kill never leaves half a checkpoint.

A rename does that. Where directories cannot be renamed (mounts of object stores, say),
a checkpoint is written and deleted under its own name. The file ``step-<n>.unfinished``
beside it says, from before the first change until after the last, that it is not a
checkpoint; what a kill leaves that way becomes one if it verifies, and is otherwise
deleted. That depends only on the order of writes, and takes no extra room unless the
checkpoint of a step is replaced: the old one is copied first.

What a file system can do is tried out before a run. A checkpoint requires that a file
can be renamed over another: where that fails, the run is refused.
"""

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from resilient.errors import NotSupportedError
from resilient.storage import layout
from resilient.storage.files import UNABLE, sync, sync_tree

# They rename a directory by copying and deleting its files, one by one.
_COPYING = frozenset(
    f"fuse.{name}"
    for name in ("blobfuse2", "gcsfuse", "geesefs", "goofys", "ossfs", "rclone", "s3fs")
)

_in_place: set[Path] = set()  # directories in which no directory can be renamed


def renames_directories(directory: Path) -> bool:
    """Whether renaming a directory in this one works and is atomic."""
    return directory not in _in_place


def move(path: Path, target: Path) -> None:
    """Rename a checkpoint, a former one, or anything with the name of one.

    Args:
        path: Its path in a checkpoint directory.
        target: A free name there, or in its quarantine.

    Raises:
        OSError: The file system failed; it has its old name, or both names.
    """
    if _rename(path, target):
        return
    with _unfinished(target):
        _copy(path, target)
    delete_at_once(path)


def delete_checkpoints(paths: list[Path]) -> None:
    """Delete them so that a kill never leaves half of one that looks complete.

    Args:
        paths: Paths of checkpoints, or former ones, in one directory.
    """
    renamed = []
    for path in paths:
        step = int(path.name.removeprefix("step-").partition(".")[0])
        target = path.with_name(layout.staging_name(step))
        if _rename(path, target):
            renamed.append(target)
        else:
            delete_at_once(path)
    if renamed:
        sync(renamed[0].parent)
    for path in renamed:
        delete(path)


def delete_at_once(path: Path) -> None:
    """Delete a checkpoint under its own name."""
    with _unfinished(path):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if not path.is_symlink():
                (path / layout.MANIFEST).unlink()
        if os.path.lexists(path):
            delete(path)


def delete(path: Path) -> None:
    """Delete whatever has this name; of a link, only the link. Follows no links."""
    if stat.S_ISDIR(path.lstat().st_mode):
        try:
            shutil.rmtree(os.fspath(path))  # a Path is slow to join
        except RecursionError:  # hundreds deep: not ours
            what = "its directories are nested too deep"
            raise OSError(errno.ELOOP, what, os.fspath(path)) from None
    else:
        path.unlink()


@contextlib.contextmanager
def written_in_place(committed: Path) -> Iterator[Path]:
    """Inside, a checkpoint is written under its own name; afterwards it is complete.

    If that fails, the former checkpoint of the same step is restored.

    Args:
        committed: Its path.
    """
    directory, former = committed.parent, None
    if os.path.lexists(committed):
        step = int(committed.name.removeprefix("step-"))
        if not layout.unfinished_path(committed).exists():
            former = directory / layout.replaced_name(step)
            _copy(committed, former)
            sync(directory)
        delete_at_once(committed)
    try:
        with _unfinished(committed):
            yield committed
    except BaseException:
        with contextlib.suppress(OSError):  # otherwise `recovery` does it
            delete_at_once(committed)
            if former is not None:
                move(former, committed)
        raise
    if former is not None:
        with contextlib.suppress(OSError):
            delete_at_once(former)


def _rename(path: Path, target: Path) -> bool:
    """Rename a directory atomically; False if that is impossible.

    An overlay (a container's) renames new directories, but not those of its image.
    """
    if not renames_directories(path.parent):
        return False
    try:
        os.rename(path, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return False
    return True


@contextlib.contextmanager
def _unfinished(path: Path) -> Iterator[None]:
    """What has this name is no checkpoint until the body ends without error."""
    if not layout.is_committed_name(path.name):
        yield
        return
    mark = layout.unfinished_path(path)
    mark.touch()
    sync(path.parent)
    yield
    sync(path.parent)
    mark.unlink()


def _copy(path: Path, target: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.copytree(path, target, symlinks=True)
        sync_tree(target)
    else:
        shutil.copy2(path, target, follow_symlinks=False)


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
        if error.errno not in UNABLE:
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
        if error.errno not in UNABLE:
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
