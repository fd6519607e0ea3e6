"""Deletes checkpoints that a keep policy does not select; never the newest.

It runs after every save, so it must be quick even if a run keeps thousands: a manifest
is read at most once, and again only if its file was replaced.
"""

import contextlib
import logging
import os
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
from resilient.storage import directories, layout, shared_files
from resilient.storage.checkpoint import Checkpoint
from resilient.storage.manifest import ManifestError

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
                hint=f"Allow this user to delete in {self._directory}.",
            ) from error
        return doomed

    def _apart(self, there: list[int], doomed: list[int]) -> list[int]:
        """Those that can go: what they are between shares no file any more."""
        for older, newer in list(_new_neighbours(there, doomed)):
            try:
                shared_files.separate(self._path(older), self._path(newer))
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
