"""Keeps checkpoints side by side from sharing a file: its damage would take both.

Two checkpoints may share files that did not change (``saving/unchanged``). They are
never neighbours when they are saved; deleting what is between them would make them so.
"""

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from resilient.errors import CheckpointReadError, NotSupportedError
from resilient.storage.checkpoint import Checkpoint
from resilient.storage.file_record import FileRecord, record
from resilient.storage.files import open_file, sync
from resilient.storage.manifest import ManifestError


def separate(older: Path, newer: Path) -> None:
    """Give the newer checkpoint files of its own where it shares one with the older.

    A kill leaves each of them shared or not; the bytes are the same.

    Raises:
        OSError: The file system failed, or a shared file is damaged.
    """
    shared = {(each.st_dev, each.st_ino) for _, each in _linked(older)}
    if not shared:
        return
    records = _records(newer)
    for path, found in list(_linked(newer)):
        if (found.st_dev, found.st_ino) in shared:
            inside = Path(path).relative_to(newer).as_posix()
            _replace_by_copy(path, records.get(inside))


def _records(directory: Path) -> Mapping[str, FileRecord]:
    """What its files were when they were committed, if its manifest says."""
    unknown = ManifestError, NotSupportedError, CheckpointReadError
    with contextlib.suppress(*unknown):
        return Checkpoint.read(directory).files
    return {}


def _replace_by_copy(path: str, expected: FileRecord | None) -> None:
    folder, name = os.path.split(path)
    beside = f"{path}.own"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(beside)  # a kill left it, or somebody put a link there
    try:
        with (
            open(open_file(Path(folder), name), "rb", buffering=0) as source,
            open(beside, "xb") as target,
        ):
            shutil.copyfileobj(source, target, 1 << 20)
            target.flush()
            os.fsync(target.fileno())
            source.seek(0)
            copied = record(source, os.fstat(target.fileno()).st_size)
        if not (expected is None or copied.matches(expected)):
            raise OSError(errno.EIO, "it does not match its checksum", path)
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
