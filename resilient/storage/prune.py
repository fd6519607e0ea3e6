"""Deletes checkpoints that a keep policy does not select; never the newest.

It runs after every save, so it must be quick even if a run keeps thousands: a manifest
is read at most once, and again only if its file was replaced.

Two checkpoints may share files that did not change (``saving/writer``), but none
side by side: its damage would take both. They are never neighbours when they are saved;
where deleting what is between them would make them so, the files are copied.
"""

import contextlib
import errno
import logging
import os
import shutil
import stat
from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from resilient.errors import (
    CheckpointReadError,
    CheckpointWriteError,
    NotSupportedError,
)
from resilient.policies import KeepPolicy
from resilient.storage import directories, layout
from resilient.storage.checkpoint import Checkpoint
from resilient.storage.files import open_file, sync
from resilient.storage.manifest import FileRecord, ManifestError, record
from resilient.storage.refusals import DISK_ERRORS

logger = logging.getLogger(__name__)


class _Known(NamedTuple):
    """What keep policies compare, and the file it came from."""

    step: int
    metrics: Mapping[str, float]
    created: str
    file: tuple[int, ...] | None


class Pruner:
    """Prunes one directory; the caller holds its lock."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[int, _Known] = {}

    def add(self, checkpoint: Checkpoint) -> None:
        """Know a new checkpoint without reading it."""
        if checkpoint.is_trusted():
            step, created = checkpoint.step, checkpoint.created
            metrics = {name: float(x) for name, x in checkpoint.metrics.items()}
            file = _file(os.path.join(checkpoint.path, layout.MANIFEST))
            self._known[step] = _Known(step, metrics, created, file)

    def prune(self, keep: KeepPolicy, held: Collection[int] = frozenset()) -> list[int]:
        """Delete what the policy does not select, and return the steps.

        Args:
            keep: The policy.
            held: Steps to keep in any case.

        Raises:
            CheckpointWriteError: If the file system does not allow it.
        """
        try:
            there = self._look()
            kept = keep.select(self._known.values()) | set([*self._known][-1:])
            kept |= set(held)
            doomed = [step for step in self._known if step not in kept]
            doomed = self._apart(there, doomed)
            directories.delete_checkpoints([self._path(step) for step in doomed])
        except OSError as error:
            raise CheckpointWriteError(
                f"Old checkpoints cannot be deleted: {error.strerror}.",
                received=error,
                hint=DISK_ERRORS.get(error.errno or 0, "Check the disk."),
            ) from error
        return doomed

    def _apart(self, there: list[int], doomed: list[int]) -> list[int]:
        """Those that can go: what they are between shares no file any more."""
        for older, newer in list(_new_neighbours(there, doomed)):
            try:
                _separate(self._path(older), self._path(newer))
            except OSError as error:
                logger.warning(
                    "%s and %s share a file that cannot be copied, so what is between "
                    "them is kept: %s",
                    *(self._path(older), self._path(newer).name, error),
                )
                doomed = [step for step in doomed if not older < step < newer]
        return doomed

    def _path(self, step: int) -> Path:
        return self._directory / layout.committed_name(step)

    def _look(self) -> list[int]:
        """Find the checkpoints by step, and read new manifests.

        Returns:
            All steps. Those that cannot be judged are kept, and may be used again.
        """
        known, there = {}, layout.committed_steps(self._directory)
        root = os.fspath(self._directory)  # a path for each would take most of the time
        for step in there:
            name = layout.committed_name(step)
            file = _file(os.path.join(root, name, layout.MANIFEST))
            before = self._known.get(step)
            if before is not None and before.file == file is not None:
                known[step] = before
                continue
            # Keep what cannot be judged.
            with contextlib.suppress(
                ManifestError, NotSupportedError, CheckpointReadError
            ):
                found = Checkpoint.read(self._path(step))
                if (
                    found.is_trusted()
                ):  # otherwise a stranger's newest would replace ours
                    known[step] = _Known(step, found.metrics, found.created, file)
        self._known = known
        return there


def _new_neighbours(
    steps: list[int], doomed: Collection[int]
) -> Iterator[tuple[int, int]]:
    """Those of the other steps that have only doomed ones between them."""
    gone = set(doomed)
    places = [number for number, step in enumerate(steps) if step not in gone]
    for one, other in pairwise(places):
        if other - one > 1:
            yield steps[one], steps[other]


def _file(path: str) -> tuple[int, ...] | None:
    """A value that changes when a file is replaced; None if it cannot be read."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _separate(older: Path, newer: Path) -> None:
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
