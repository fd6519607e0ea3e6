"""Moves and deletes whole directories so that a kill leaves no half of a checkpoint.

A rename does that. Where directories cannot be renamed (``file_system``), a checkpoint
is written and deleted under its own name. Beside it the file ``step-<n>.unfinished``
then says from before the first change until after the last that it is none; what a kill
left that way is one if it verifies, and is else deleted. That takes only the order of
writes, and no more room than before except where the checkpoint of a step is replaced:
the former one is copied first.
"""

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from resilient.storage import layout
from resilient.storage.file_system import renames_directories
from resilient.storage.files import sync, sync_tree


def move(path: Path, target: Path) -> None:
    """Give a checkpoint, a former one, or what has the name of one, another name.

    Args:
        path: In a checkpoint directory.
        target: There, or in its quarantine; nothing has this name.

    Raises:
        OSError: The file system failed; what was moved is at its old name or at both.
    """
    if _rename(path, target):
        return
    with _unfinished(target):
        _copy(path, target)
    delete_at_once(path)


def delete_checkpoints(paths: list[Path]) -> None:
    """Delete them: a kill never leaves half of what looks like a checkpoint.

    Args:
        paths: Of checkpoints, or former ones, of one directory.
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
    """Delete what has this name; of a link, only the link. Links inside stay unread."""
    if stat.S_ISDIR(path.lstat().st_mode):
        try:
            shutil.rmtree(path)
        except RecursionError:  # hundreds deep: it is none of ours
            what = "its directories are nested too deep"
            raise OSError(errno.ELOOP, what, os.fspath(path)) from None
    else:
        path.unlink()


@contextlib.contextmanager
def written_in_place(committed: Path) -> Iterator[Path]:
    """Inside, a checkpoint is written under its own name; it is one afterwards.

    If that fails, the former one of the same step is back.

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
        with contextlib.suppress(OSError):  # or `recovery` does it
            delete_at_once(committed)
            if former is not None:
                move(former, committed)
        raise
    if former is not None:
        with contextlib.suppress(OSError):
            delete_at_once(former)


def _rename(path: Path, target: Path) -> bool:
    """Rename a directory, all at once; False where that cannot be done.

    An overlay (a container's) renames new directories, and not those of its image.
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
    """What has this name is no checkpoint until the body has ended without an error."""
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
