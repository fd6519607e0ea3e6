"""A checkpoint directory as the library sees it: finds, verifies, falls back, prunes.

Callers of methods that change the directory hold its ``DirectoryLock``. A checkpoint
that fails verification is never used nor deleted, but moved to quarantine with the
reason. If no good one is left, the store raises rather than start over silently.
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
    CheckpointNotFoundError,
    CheckpointReadError,
    CorruptCheckpointError,
    NotSupportedError,
    printable,
)
from resilient.policies import KeepPolicy
from resilient.progress import Progress
from resilient.storage import commit, layout, manifest, quarantine, refusals
from resilient.storage.checkpoint import Checkpoint, DamageError
from resilient.storage.commit import Staging
from resilient.storage.files import GROWTH
from resilient.storage.lock import DirectoryLock
from resilient.storage.manifest import LIBRARY, FileRecord, Manifest, ManifestError, now
from resilient.storage.prune import Pruner
from resilient.storage.recovery import recover, remove_stale_staging

logger = logging.getLogger(__name__)

T = TypeVar("T")

_NAMED = 20  # damaged checkpoints that one message names


class Store:
    """The checkpoints of one run, in one local directory.

    Attributes:
        directory: Absolute path; it need not exist yet.
        report: Called with the name of an event, and its fields.
        say: Called with a line for the user.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory: Path = layout.local_directory(directory)
        self.report: Callable[..., None] = lambda event, **fields: None
        self.say: Callable[[str], object] = logger.info
        self._settled = self._small = False
        manifest.has_key()  # a key that is too short is an error now, not at a save
        self._pruner = Pruner(self.directory)

    def __str__(self) -> str:
        return str(self.directory)

    @contextlib.contextmanager
    def opened(self, *, anew: bool = False) -> Iterator[None]:
        """Lock the directory, created if necessary, and tidy it.

        Args:
            anew: Whether the run is about to be started over.

        Raises:
            DirectoryInUseError, CheckpointWriteError: It cannot be locked.
        """
        with DirectoryLock(self.directory):
            remove_stale_staging(self.directory)
            yield

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """The same without training; raises DirectoryInUseError."""
        there = self.directory.is_dir()
        with DirectoryLock(self.directory) if there else contextlib.nullcontext():
            yield

    def uploaded(self, seconds: float) -> bool:
        """Wait for uploads, at most this long; False if waiting longer may help."""
        return True

    def not_uploaded(self) -> str:
        """Which checkpoints are not uploaded, and why; empty if all are."""
        return ""

    def checkpoints(self, *, only_readable: bool = False) -> list[Checkpoint]:
        """The committed checkpoints by step, from their manifests alone.

        Without those that have a damaged or later manifest, see ``problems``.

        Args:
            only_readable: Also leave out those that cannot be read right now.

        Raises:
            CheckpointReadError: One cannot be read right now.
        """
        unread = (CheckpointReadError,) if only_readable else ()
        found = []
        for step in layout.committed_steps(self.directory):
            with contextlib.suppress(ManifestError, NotSupportedError, *unread):
                found.append(Checkpoint.read(self._path(step)))
        return found

    def steps(self) -> list[int]:
        """Steps of everything with the name of a checkpoint, ascending."""
        return layout.committed_steps(self.directory)

    def problems(self, step: int) -> list[str]:
        """Compare every byte of a step's checkpoint, and return what is wrong.

        Raises:
            NotSupportedError: If a later version of this library wrote it.
            CheckpointReadError: If it cannot be read right now.
        """
        if layout.leads_nowhere(self._path(step)):
            return ["it is a link whose target is missing"]
        try:
            return Checkpoint.read(self._path(step)).verify()
        except ManifestError as error:
            return [str(error)]

    def load_newest(
        self,
        read: Callable[[Checkpoint], T],
        report: Callable[[str, str], None] | None = None,
    ) -> tuple[Checkpoint, T] | None:
        """The newest checkpoint that verifies; newer ones go to quarantine.

        Args:
            read: Reads it, verified.
            report: Called with the name of each that does not verify, and the reason.

        Returns:
            The checkpoint and what was read. None only without any trace of one.

        Raises:
            CheckpointNotFoundError: If it is a link whose target is missing.
            CorruptCheckpointError: If there are some, but none is good.
        """
        recover(self.directory)
        failed = {}
        for step in self._newest_first():
            _require_target(self._path(step))
            try:
                self._get_ready(step)
                found = Checkpoint.read(self._path(step))
                return found, found.load(read)
            except (ManifestError, DamageError) as error:
                reason = printable(str(error))
            failed[self._quarantine(step, reason)] = reason
            self._settled = False
            if report is not None:
                report(layout.committed_name(step), reason)
        entries = quarantine.entries(self.directory)
        failed |= {path: why.text for path, why in entries.items() if why.open}
        if failed:
            raise _none_intact(self.directory, failed)
        return None

    def load(self, step: int, read: Callable[[Checkpoint], T]) -> tuple[Checkpoint, T]:
        """The checkpoint of a step, verified, and what was read.

        Raises:
            CheckpointNotFoundError: If there is none.
            CorruptCheckpointError: If it does not verify; it stays where it is.
        """
        recover(self.directory)
        checkpoint = self.read(step)
        try:
            return checkpoint, checkpoint.load(read)
        except DamageError as error:
            raise refusals.damaged(self._path(step), str(error)) from None

    def read(self, step: int) -> Checkpoint:
        """The checkpoint of a step from its manifest alone; changes nothing.

        Raises:
            CheckpointNotFoundError: If there is none.
            CorruptCheckpointError: If its manifest cannot be read.
        """
        steps = self.steps()
        if step not in steps:
            available = ", ".join(map(str, steps)) or "no checkpoint at all"
            raise CheckpointNotFoundError(
                f"There is no checkpoint of step {step} in {self}.",
                received=f"step {step}",
                hint=f"Choose one of the existing steps: {available}.",
            )
        _require_target(self._path(step))
        try:
            return Checkpoint.read(self._path(step))
        except ManifestError as error:
            raise refusals.damaged(self._path(step), str(error)) from None

    def staging(
        self, progress: Progress, name: str | None = None
    ) -> contextlib.AbstractContextManager[Staging]:
        """Inside, a new directory is filled, sealed and committed; else it is removed.

        Args:
            progress: Where the run is.
            name: The name of the directory, if others have to know it.

        Raises:
            CheckpointWriteError: If the file system fails.
        """
        path = self.directory / (name or layout.staging_name(progress.step))
        return commit.staging(path, progress, small=self._small)  # as far as known

    def commit(
        self,
        staging: Staging,
        files: Mapping[str, FileRecord],
        *,
        metrics: Mapping[str, float],
        finished: bool,
        environment: Mapping[str, str],
    ) -> Checkpoint:
        """Make a checkpoint of a staging directory.

        A checkpoint of the same step is replaced, with never a moment without either.

        Args:
            staging: The directory.
            files: Its files, all of them on disk.
            metrics: The values that keep policies compare.
            finished: Whether the run is over.
            environment: Versions of the writing libraries, besides this one.

        Raises:
            OSError: If the file system fails; ``staging`` explains it.
        """
        by = {LIBRARY: __version__, **environment}
        values = {name: float(x) for name, x in metrics.items()}
        made = Manifest(staging.progress, finished, values, now(), by, files)
        checkpoint = commit.publish(staging, made.signed())
        self._small = checkpoint.nbytes < GROWTH
        self._pruner.add(checkpoint)
        if not self._settled and os.path.lexists(self.directory / layout.QUARANTINE):
            with contextlib.suppress(OSError):
                quarantine.settle(self.directory)
        self._settled = True
        return checkpoint

    def prune(self, keep: KeepPolicy) -> list[int]:
        """Delete what the policy does not select, never the newest; return the steps.

        Raises:
            CheckpointWriteError: If the file system does not allow it.
        """
        return self._pruner.prune(keep)

    def discard_after(self, step: int) -> list[int]:
        """Move checkpoints newer than ``step`` to quarantine, and return their steps.

        Raises:
            CheckpointWriteError: If the file system does not allow it.
        """
        newer = [s for s in layout.committed_steps(self.directory) if s > step]
        self._move(newer, "superseded", f"resumed from step {step} instead")
        return newer

    def discard_all(self) -> list[int]:
        """Start over: move every checkpoint to quarantine, and return their steps.

        Raises:
            CheckpointWriteError: If the file system does not allow it.
        """
        recover(self.directory)
        steps = layout.committed_steps(self.directory)
        self._move(steps, "discarded", "the run was started over")
        return steps

    def _move(self, steps: list[int], kind: quarantine.Kind, reason: str) -> None:
        with refusals.unwritable(
            "Checkpoints cannot be moved to quarantine",
            hint=f"Allow this user to write in {self.directory}, and remove "
            f"{layout.QUARANTINE} there if it is not a directory.",
        ):
            for step in steps:
                quarantine.move(self._path(step), kind, reason)
            if kind == "discarded":
                quarantine.settle(self.directory)

    def _newest_first(self) -> Iterator[int]:
        """Steps to try, the newest first."""
        return reversed(layout.committed_steps(self.directory))

    def _get_ready(self, step: int) -> None:
        """Raise DamageError if a step cannot even be tried."""

    def _path(self, step: int) -> Path:
        return self.directory / layout.committed_name(step)

    def _quarantine(self, step: int, reason: str) -> Path:
        try:
            return quarantine.move(self._path(step), "damaged", reason)
        except OSError as error:
            # In a read-only directory, an earlier checkpoint can still be used.
            logger.warning("%s stays where it is: %s", self._path(step).name, error)
            return self._path(step)


def _require_target(path: Path) -> None:
    """Raise if a checkpoint is on a disk that is not mounted."""
    if layout.leads_nowhere(path):
        step = int(path.name.removeprefix("step-"))
        raise CheckpointNotFoundError(
            f"The checkpoint of step {step} is a link whose target is missing.",
            received=f"{path} -> {printable(os.readlink(path))}",
            hint="Mount the disk that it is on, or delete the link to use the "
            "checkpoint before it.",
        )


def _none_intact(directory: Path, failed: Mapping[Path, str]) -> CorruptCheckpointError:
    """The error if every checkpoint is damaged, with the reasons by path."""
    lines = "".join(
        f"\n  {path.relative_to(directory)}: {printable(reason[: refusals.LONGEST])}"
        for path, reason in islice(failed.items(), _NAMED)
    )
    if len(failed) > _NAMED:
        lines += f"\n  and {len(failed) - _NAMED:,} more"
    return CorruptCheckpointError(
        "No checkpoint in this directory is intact.",
        received=f"{directory}{lines}",
        hint="Restore a good copy under its own name, choose another step, or "
        'start over with resume="never" or in another directory. Damaged '
        f"checkpoints are kept in {directory / layout.QUARANTINE}.",
    )
