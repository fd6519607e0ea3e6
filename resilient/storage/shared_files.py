"""Keeps checkpoints side by side from sharing a file: its damage would take both.

Two checkpoints may share files that did not change (``saving/unchanged``). They are
never neighbours when they are saved; deleting what is between them would make them so.
"""

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from resilient.storage.files import open_file, sync


def separate(older: Path, newer: Path) -> None:
    """Give the newer checkpoint files of its own where it shares one with the older.

    A kill leaves each of them shared or not; the bytes are the same.

    Raises:
        OSError: The file system failed.
    """
    shared = {(each.st_dev, each.st_ino) for _, each in _linked(older)}
    for path, found in list(_linked(newer)) if shared else []:
        if (found.st_dev, found.st_ino) in shared:
            _replace_by_copy(path)


def _replace_by_copy(path: str) -> None:
    folder, name = os.path.split(path)
    beside = f"{path}.own"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(beside)  # a kill left it, or somebody put a link there
    try:
        with (
            open(open_file(Path(folder), name), "rb") as source,
            open(beside, "xb") as target,
        ):
            shutil.copyfileobj(source, target, 1 << 20)
            target.flush()
            os.fsync(target.fileno())
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise
    sync(folder)


def _linked(directory: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Files that have another name somewhere."""
    for parent, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(parent, name)
            found = os.lstat(path)
            if found.st_nlink > 1 and stat.S_ISREG(found.st_mode):
                yield path, found
