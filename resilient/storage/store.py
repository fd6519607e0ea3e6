"""Finds, verifies, falls back, prunes: a checkpoint directory as the library sees it.

Callers of methods that change the directory hold its ``DirectoryLock``. A checkpoint
that fails verification is never used and never deleted, but moved to quarantine with
the reason. If no good one is left the store raises, and does not start over silently.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TypeVar

from resilient._version import __version__
from resilient.errors import (
    ANOTHER_STEP,
    CheckpointNotFoundError,
    CheckpointReadError,
    CheckpointWriteError,
    CorruptCheckpointError,
    NotSupportedError,
    printable,
)
from resilient.policies import KeepPolicy
from resilient.progress import Progress
from resilient.storage import commit, layout, quarantine, signature
from resilient.storage.checkpoint import Checkpoint, DamageError, Reader
from resilient.storage.file_record import FileRecord
from resilient.storage.manifest import LIBRARY, Manifest, ManifestError
from resilient.storage.prune import Pruner
from resilient.storage.recovery import recover

logger = logging.getLogger(__name__)

T = TypeVar("T")

_NAMED = 20  # damaged checkpoints that one message names


class Store:
    """The checkpoints of one run, in one local directory.

    Attributes:
        directory: Absolute path; it need not exist yet.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory: Path = layout.local_directory(directory)
        self._settled = False
        signature.has_key()  # one that is too short is an error now, not at a save
        self._pruner = Pruner(self.directory)

    def checkpoints(self, *, to_look: bool = False) -> list[Checkpoint]:
        """The committed checkpoints by step, from their manifests alone.

        Without those whose manifest is damaged or of a later version, see ``problems``.

        Args:
            to_look: Also without those that cannot be read here and now.

        Raises:
            CheckpointReadError: One cannot be read here and now.
        """
        unread = (CheckpointReadError,) if to_look else ()
        found = []
        for step in layout.committed_steps(self.directory):
            with contextlib.suppress(ManifestError, NotSupportedError, *unread):
                found.append(Checkpoint.read(self._path(step)))
        return found

    def problems(self, step: int) -> list[str]:
        """What is wrong with the checkpoint of a step; compares every byte.

        Raises:
            NotSupportedError: If a later version of this library wrote it.
            CheckpointReadError: If it cannot be read here and now.
        """
        if layout.leads_nowhere(self._path(step)):
            return ["it is a link whose target is missing"]
        try:
            return Checkpoint.read(self._path(step)).verify()
        except ManifestError as error:
            return [str(error)]

    def load_newest(
        self, reader: Reader[T], report: Callable[[str, str], None] | None = None
    ) -> tuple[Checkpoint, T] | None:
        """The newest checkpoint that verifies; newer ones go to quarantine.

        Args:
            reader: Reads it.
            report: Called with the name of each that does not verify, and the reason.

        Returns:
            The checkpoint, and what was read. None only if nothing tells of one.

        Raises:
            CheckpointNotFoundError: If it is a link whose target is missing.
            CorruptCheckpointError: If there were some and none is good.
        """
        recover(self.directory)
        failed = {}
        for step in reversed(layout.committed_steps(self.directory)):
            self._require_target(step)
            try:
                return self.try_to_load(step, reader)
            except (ManifestError, DamageError) as error:
                reason = printable(str(error))
            failed[self._quarantine(step, reason)] = reason
            self._settled = False
            if report is not None:
                report(layout.committed_name(step), reason)
        for entry in quarantine.entries(self.directory):
            if entry.reason.open:
                failed[entry.path] = entry.reason.text
        if failed:
            raise self._none_intact(failed)
        return None

    def load(self, step: int, reader: Reader[T]) -> tuple[Checkpoint, T]:
        """The checkpoint of a step, verified, and what was read.

        Raises:
            CheckpointNotFoundError: If there is none.
            CorruptCheckpointError: If it does not verify; it stays where it is.
        """
        recover(self.directory)
        checkpoint = self.read(step)
        try:
            return checkpoint, checkpoint.load(reader)
        except DamageError as error:
            raise self._damaged(step, str(error)) from None

    def try_to_load(self, step: int, reader: Reader[T]) -> tuple[Checkpoint, T]:
        """The checkpoint of a step, verified, and what was read; changes nothing.

        Raises:
            ManifestError: Its manifest is damaged or missing.
            DamageError: Another file is.
        """
        checkpoint = Checkpoint.read(self._path(step))
        return checkpoint, checkpoint.load(reader)

    def read(self, step: int) -> Checkpoint:
        """The checkpoint of a step from its manifest alone; changes nothing.

        Raises:
            CheckpointNotFoundError: If there is none.
            CorruptCheckpointError: If its manifest cannot be read.
        """
        steps = layout.committed_steps(self.directory)
        if step not in steps:
            available = ", ".join(map(str, steps)) or "no checkpoint at all"
            raise CheckpointNotFoundError(
                f"There is no checkpoint of step {step} in {self.directory}.",
                received=f"step {step}",
                hint=f"Choose one of the steps that are there: {available}.",
            )
        self._require_target(step)
        try:
            return Checkpoint.read(self._path(step))
        except ManifestError as error:
            raise self._damaged(step, str(error)) from None

    def commit(
        self,
        progress: Progress,
        write: Callable[[str], None],
        *,
        metrics: Mapping[str, float],
        finished: bool,
        environment: Mapping[str, str],
        name: str | None = None,
        others: Callable[[Path], dict[str, FileRecord]] | None = None,
    ) -> Checkpoint:
        """Make a checkpoint out of what ``write`` puts into a directory.

        A checkpoint of the same step is replaced, without a moment without either.

        Args:
            progress: Where the run is.
            write: Fills the empty staging directory that it is given the path of.
            metrics: What keep policies look at.
            finished: Whether the run is over.
            environment: Versions of what writes it, beside this library.
            name: Of the staging directory, where others have to know it.
            others: Moves into it what other processes wrote and flushed.

        Raises:
            CheckpointWriteError: If the file system fails; the others are intact.
        """
        staging = self.directory / (name or layout.staging_name(progress.step))

        def manifest(place: Path, written: dict[str, FileRecord]) -> Manifest:
            written |= {} if others is None else others(place)
            now, versions = quarantine.now(), {LIBRARY: __version__, **environment}
            return Manifest(progress, finished, metrics, now, versions, written)

        checkpoint = commit.commit(staging, progress, write, manifest)
        if not self._settled:
            with contextlib.suppress(OSError):
                quarantine.settle(self.directory)
            self._settled = True
        return checkpoint

    def prune(self, keep: KeepPolicy) -> list[int]:
        """Delete what the policy does not select; never the newest.

        Returns:
            The steps that were deleted.

        Raises:
            CheckpointWriteError: If the file system does not allow it.
        """
        return self._pruner.prune(keep)

    def discard_after(self, step: int) -> list[int]:
        """Move checkpoints newer than ``step`` to quarantine; returns their steps.

        Raises:
            CheckpointWriteError: If the file system does not allow it.
        """
        newer = [s for s in layout.committed_steps(self.directory) if s > step]
        reason = f"resumed from step {step} instead"
        with self._explained():
            for other in newer:
                quarantine.move(self._path(other), "superseded", reason)
        return newer

    def discard_all(self) -> list[int]:
        """Start over: move every checkpoint to quarantine; returns their steps.

        Raises:
            CheckpointWriteError: If the file system does not allow it.
        """
        recover(self.directory)
        steps = layout.committed_steps(self.directory)
        with self._explained():
            for step in steps:
                reason = "the run was started over"
                quarantine.move(self._path(step), "discarded", reason)
            quarantine.settle(self.directory)
        return steps

    def _path(self, step: int) -> Path:
        return self.directory / layout.committed_name(step)

    def _require_target(self, step: int) -> None:
        path = self._path(step)
        if layout.leads_nowhere(path):
            raise CheckpointNotFoundError(
                f"The checkpoint of step {step} is a link whose target is missing.",
                received=f"{path} -> {printable(os.readlink(path))}",
                hint="Mount the disk that it is on, or delete the link to use the "
                "checkpoint before it.",
            )

    def _quarantine(self, step: int, reason: str) -> Path:
        try:
            return quarantine.move(self._path(step), "damaged", reason)
        except OSError as error:
            # In a read-only directory an earlier checkpoint can still be used.
            logger.warning("%s stays where it is: %s", self._path(step).name, error)
            return self._path(step)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CheckpointWriteError(
                f"Checkpoints cannot be moved to quarantine: {error.strerror}.",
                received=error,
                hint=f"Allow this user to write in {self.directory}, and remove "
                f"{layout.QUARANTINE} there if it is not a directory.",
            ) from error

    def _damaged(self, step: int, reason: str) -> CorruptCheckpointError:
        return CorruptCheckpointError(
            f"The checkpoint of step {step} is damaged.",
            received=f"{self._path(step)}: {printable(reason[:2000])}",
            hint=ANOTHER_STEP,
        )

    def _none_intact(self, failed: Mapping[Path, str]) -> CorruptCheckpointError:
        lines = "".join(
            f"\n  {path.relative_to(self.directory)}: {printable(reason[:2000])}"
            for path, reason in islice(failed.items(), _NAMED)
        )
        if len(failed) > _NAMED:
            lines += f"\n  and {len(failed) - _NAMED:,} more"
        return CorruptCheckpointError(
            "No checkpoint in this directory is intact.",
            received=f"{self.directory}{lines}",
            hint="Restore a good copy under its own name, choose another step, or "
            'start over with resume="never" or in another directory. Damaged '
            f"checkpoints are kept in {self.directory / layout.QUARANTINE}.",
        )
