"""Moves and deletes whole directories so that a kill never leaves half a checkpoint.

A rename does that. Directories that came with a container's image cannot be renamed
(its file system is an overlay), unlike those made since. So such a checkpoint is
copied, and the copy renamed; and it is deleted after its manifest was moved to a
temporary name, by which ``recovery`` knows what a kill left of it.

What a file system can do is tried out before a run: it has to rename a directory in
one step, and a file over another.
"""

import contextlib
import errno
import os
import shutil
import stat
from pathlib import Path

from resilient.errors import NotSupportedError
from resilient.storage import layout
from resilient.storage.files import UNABLE, sync, sync_tree

# Mounts that rename a directory by copying or renaming its files, one by one; and what
# to use instead.
_ADDRESSES = {
    "fuse.blobfuse2": "az://container/run",
    "fuse.gcsfuse": "gs://bucket/run",
    "fuse.geesefs": "s3://bucket/run",
    "fuse.goofys": "s3://bucket/run",
    "fuse.ossfs": "oss://bucket/run",
    "fuse.rclone": "s3://bucket/run",
    "fuse.s3fs": "s3://bucket/run",
}


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
    copy = _staging(path)
    shutil.copytree(path, copy, symlinks=True)
    sync_tree(copy)
    os.rename(copy, target)
    sync(target.parent)
    _delete_in_place(path)


def delete_checkpoints(paths: list[Path]) -> None:
    """Delete them so that a kill never leaves half of one that looks complete.

    Args:
        paths: Paths of checkpoints, or former ones, in one directory.
    """
    targets = {path: _staging(path) for path in paths}
    renamed = {path for path, target in targets.items() if _rename(path, target)}
    if renamed:
        sync(paths[0].parent)
    for path, target in targets.items():
        if path in renamed:
            delete(target)
        else:
            _delete_in_place(path)


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


def check_abilities(directory: Path) -> None:
    """Refuse a file system that lacks what a checkpoint requires. Needs the lock.

    Raises:
        NotSupportedError: A directory cannot be renamed in one step, or a file not
            over another.
    """
    kind, place = _kind(directory), directory / layout.probe_name()
    lacks = "rename a directory in one step" if kind in _ADDRESSES else None
    try:
        if lacks is None:
            (place / "a").mkdir(parents=True)
            (place / "a" / "new").touch()
            (place / "a" / "former").touch()
            lacks = "rename a file over another"
            os.replace(place / "a" / "new", place / "a" / "former")
            lacks = "rename a directory"
            os.replace(place / "a", place / "b")
            return
    except OSError as error:
        # A full disk, say: the first save will raise it.
        if lacks is None or error.errno not in UNABLE:
            return
    finally:
        shutil.rmtree(place, ignore_errors=True)
    address = _ADDRESSES.get(kind or "", "s3://bucket/run")
    raise NotSupportedError(
        f"The file system of the checkpoint directory cannot {lacks}, so no "
        "checkpoint would be safe there.",
        received=f"{directory}, a mount of type {kind or 'unknown'}",
        hint="Choose a checkpoint_dir on another file system. If this is a mount of an "
        f'object store, pass the address itself, such as "{address}".',
    )


def _rename(path: Path, target: Path) -> bool:
    """Rename a directory; False if an overlay has it from the image."""
    try:
        os.rename(path, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return False
    return True


def _delete_in_place(path: Path) -> None:
    mark = _staging(path)
    mark.mkdir()
    with contextlib.suppress(FileNotFoundError):
        os.rename(path / layout.MANIFEST, mark / layout.MANIFEST)
    sync_tree(mark)
    sync(path.parent)
    delete(path)
    delete(mark)


def _staging(path: Path) -> Path:
    """A fresh name for what a checkpoint, or a former one, becomes for a moment."""
    step = int(path.name.removeprefix("step-").partition(".")[0])
    return path.with_name(layout.staging_name(step))


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
