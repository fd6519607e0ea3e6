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
from collections.abc import Collection
from itertools import pairwise
from pathlib import Path

from resilient.errors import (
    CheckpointReadError,
    CheckpointWriteError,
    NotSupportedError,
)
from resilient.policies import KeepPolicy
from resilient.storage import directories, layout
from resilient.storage.checkpoint import Checkpoint, find_problem
from resilient.storage.files import open_file, sync
from resilient.storage.manifest import FileRecord, ManifestError
from resilient.storage.refusals import DISK_ERRORS

logger = logging.getLogger(__name__)


class Pruner:
    """Prunes one directory; the caller holds its lock."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[int, tuple[object, Checkpoint]] = {}  # by step

    def add(self, checkpoint: Checkpoint) -> None:
        """Know a new checkpoint without reading it."""
        self._known[checkpoint.step] = _identity(checkpoint.path), checkpoint

    def prune(self, keep: KeepPolicy, held: Collection[int] = ()) -> list[int]:
        """Delete what the policy does not select, and return the steps.

        Args:
            keep: The policy.
            held: Steps to keep in any case.

        Raises:
            CheckpointWriteError: If the file system does not allow it.
        """
        try:
            steps = self._find()
            # A stranger's newest must not replace ours.
            ours = [each for _, each in self._known.values() if each.is_trusted()]
            kept = keep.select(ours) | {*held, *(each.step for each in ours[-1:])}
            doomed = [each.step for each in ours if each.step not in kept]
            doomed = self._separable(steps, doomed)
            directories.delete_checkpoints([self._path(step) for step in doomed])
        except OSError as error:
            raise CheckpointWriteError(
                f"Old checkpoints cannot be deleted: {error.strerror}.",
                received=error,
                hint=DISK_ERRORS.get(error.errno or 0, "Check the disk."),
            ) from error
        return doomed

    def _find(self) -> list[int]:
        """Find the checkpoints by step, and read new manifests.

        Returns:
            All steps. Those that cannot be judged are kept, and may be used later.
        """
        known, steps = {}, layout.committed_steps(self._directory)
        for step in steps:
            path = self._path(step)
            before, file = self._known.get(step), _identity(path)
            if before is not None and before[0] == file is not None:
                known[step] = before
                continue
            unknown = ManifestError, NotSupportedError, CheckpointReadError
            with contextlib.suppress(*unknown):
                known[step] = file, Checkpoint.read(path)
        self._known = known
        return steps

    def _separable(self, steps: list[int], doomed: list[int]) -> list[int]:
        """Those that can go: what they are between shares no file any more."""
        for older, newer in pairwise([step for step in steps if step not in doomed]):
            rest = [step for step in doomed if not older < step < newer]
            if rest != doomed and not self._separate(older, newer):
                doomed = rest
        return doomed

    def _separate(self, older: int, newer: int) -> bool:
        """Give the newer one files of its own where it shares one with the older.

        A kill leaves each of them shared or not; the bytes are the same.

        Returns:
            Whether they share nothing now, as far as one can know.
        """
        if newer not in self._known:
            return False
        path, other = self._path(newer), self._path(older)
        try:
            for name, expected in self._known[newer][1].files.items():
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    if os.path.samefile(other / name, path / name):
                        _replace_by_copy(path / name, expected)
        except OSError as error:
            logger.warning(
                "%s and %s share a file that cannot be copied, so what is between "
                "them is kept: %s",
                *(other, path.name, error),
            )
            return False
        return True

    def _path(self, step: int) -> Path:
        return self._directory / layout.committed_name(step)


def _identity(checkpoint: Path) -> object:
    """A value that changes when a manifest is replaced; None if it cannot be read."""
    try:
        found = os.stat(os.path.join(checkpoint, layout.MANIFEST))
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _replace_by_copy(path: Path, expected: FileRecord) -> None:
    beside = path.with_name(f"{path.name}.own")
    beside.unlink(missing_ok=True)  # a kill left it, or somebody put a link there
    try:
        with (
            open(open_file(path.parent, path.name), "rb", buffering=0) as source,
            open(beside, "xb") as target,
        ):
            shutil.copyfileobj(source, target, 1 << 20)
        sync(beside)
        if find_problem(beside.parent, beside.name, expected):
            raise OSError(errno.EIO, "it does not match its checksum", path)
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
    sync(path.parent)
