"""The store of a run in an object store: the local and the remote copy as one.

Everything is read and written in the local directory. What is only in the object store
is fetched when needed; commits are uploaded in the background.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from resilient import display
from resilient.errors import CorruptCheckpointError, message
from resilient.policies import KeepPolicy, keep_policy
from resilient.progress import Progress
from resilient.storage import layout, refusals
from resilient.storage.checkpoint import Checkpoint, DamageError
from resilient.storage.commit import Staging
from resilient.storage.remote.address import Address
from resilient.storage.remote.objects import Objects
from resilient.storage.remote.options import Upload
from resilient.storage.remote.ownership import Ownership, explained
from resilient.storage.remote.remote_run import RemoteRun
from resilient.storage.remote.uploader import Uploader
from resilient.storage.store import Store

_LAST_EVENTS = 2.0  # seconds that the last copy of events may take


class TieredStore(Store):
    """The checkpoints of a run in an object store, with a local copy.

    Args:
        address: Of the run.
        local_dir: The local directory; None for one among temporary files.
        upload: How to upload.

    Attributes:
        address: Of the run.
    """

    def __init__(
        self,
        address: Address,
        local_dir: str | os.PathLike[str] | None,
        upload: Upload,
    ) -> None:
        super().__init__(address.local_directory(local_dir))
        self.address = address
        _require_apart(self.directory, address)
        self._keep_local = keep_policy(upload.keep_local)
        self._ownership = Ownership(RemoteRun(Objects(address, upload), self.directory))
        self._uploader: Uploader | None = None
        self._prunes: KeepPolicy | None = None

    @property
    def objects(self) -> Objects:
        """Those below the address."""
        return self._remote.objects

    @property
    def _remote(self) -> RemoteRun:
        return self._ownership.remote

    def __str__(self) -> str:
        return str(self.address)

    @contextlib.contextmanager
    def opened(self, *, anew: bool = False) -> Iterator[None]:
        """As of ``Store``; and take over the run in the object store.

        Raises:
            CheckpointReadError: The object store does not answer, and there is nothing
                local to go on from.
            CheckpointMismatchError: The local directory is of another run.
            CheckpointWriteError: It cannot be written.
        """
        with super().opened(anew=anew):
            with refusals.of_local_copy(self.directory):
                self._ownership.take_over(anew)
            uploader = Uploader(self._remote, self._ownership.ensure, self._report)
            self._uploader = uploader
            try:
                for checkpoint in super().checkpoints(only_readable=True):
                    uploader.add(checkpoint)
                yield
            finally:
                self._uploader = None
                uploader.close(0.0 if uploader.waiting else _LAST_EVENTS)
                # A request that hangs leaves the thread with what it had.
                self._ownership = Ownership(self._remote.with_own_client())

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """As of ``Store``; what is newer in the object store is found as well."""
        layout.make_directory(self.directory)
        with super().locked():
            self.refresh()
            yield

    def refresh(self) -> None:
        """Find what is in the object store, where nobody else uses the directory.

        Raises:
            CheckpointReadError: The store does not answer.
            CheckpointWriteError: The local file system fails.
        """
        with refusals.of_local_copy(self.directory):
            self._ownership.refresh()

    def uploaded(self, seconds: float) -> bool:
        """See ``Store``."""
        uploader = self._uploader
        if uploader is None or not uploader.wait(seconds):
            return uploader is None
        if uploader.fatal is not None:
            raise uploader.fatal
        self._prune_local(uploader)  # of what was held until now
        return True

    def not_uploaded(self) -> str:
        """See ``Store``."""
        uploader = self._uploader
        if uploader is None or not uploader.waiting:
            return ""
        steps = ", ".join(f"{step:,}" for step in sorted(uploader.waiting))
        why = f" ({uploader.failed})" if uploader.failed is not None else ""
        return f"step {steps}: only in {self.directory}, not in {self.address}{why}"

    def checkpoints(self, *, only_readable: bool = False) -> list[Checkpoint]:
        """As of ``Store``; also those that are only in the object store."""
        counts, remote = self._ownership.steps(), self._remote.checkpoints
        found = {step: each for step, each in remote.items() if step in counts}
        local = super().checkpoints(only_readable=only_readable)
        found |= {each.step: each for each in local}
        return [each for _, each in sorted(found.items())]

    def steps(self) -> list[int]:
        """See ``Store``."""
        return sorted({*super().steps(), *self._ownership.steps()})

    def problems(self, step: int) -> list[str]:
        """See ``Store``."""
        try:
            self._fetch_missing(step)
        except CorruptCheckpointError as error:
            return [str(error.received)]
        return super().problems(step)

    def read(self, step: int) -> Checkpoint:
        """See ``Store``."""
        self._fetch_missing(step)
        return super().read(step)

    def staging(
        self, progress: Progress, name: str | None = None
    ) -> contextlib.AbstractContextManager[Staging]:
        """See ``Store``.

        Raises:
            DirectoryInUseError: Another run has taken over.
        """
        if self._uploader is not None and self._uploader.fatal is not None:
            raise self._uploader.fatal
        return super().staging(progress, name)

    def commit(self, *args: Any, **kwargs: Any) -> Checkpoint:
        """As of ``Store``; the upload goes on beside."""
        checkpoint = super().commit(*args, **kwargs)
        if self._uploader is not None:
            self._uploader.add(checkpoint)
        return checkpoint

    def prune(self, keep: KeepPolicy) -> list[int]:
        """As of ``Store``: ``keep`` is for the object store."""
        newest = max(self.steps(), default=-1)
        if self._uploader is None:
            with explained(self.address):
                return self._remote.prune(keep, newest)
        self._uploader.prune(keep, newest)
        self._prunes = self._keep_local | KeepPolicy(back=keep.back)
        return self._prune_local(self._uploader)

    def _prune_local(self, uploader: Uploader) -> list[int]:
        if self._prunes is None:
            return []
        return self._pruner.prune(self._prunes, uploader.waiting)

    def discard_after(self, step: int) -> list[int]:
        """See ``Store``."""
        self._abandon_after(step)
        return super().discard_after(step)

    def discard_all(self) -> list[int]:
        """See ``Store``."""
        self._abandon_after(-1)
        return super().discard_all()

    # What a restore needs. ------------------------------------------------------------

    def _newest_first(self) -> Iterator[int]:
        local = set(super().steps())
        for step in reversed(self.steps()):
            yield step
            # If it was local, it was damaged.
            if step in local and step in self._ownership.steps():
                yield step

    def _get_ready(self, step: int) -> None:
        if os.path.lexists(self._path(step)):
            return
        found = self._remote.checkpoints.get(step)
        if found is not None:
            size = display.size(found.nbytes)
            self.say(f"Fetching the checkpoint of step {step:,} ({size}) from {self}")
        with explained(self.address):
            self._remote.fetch(step)

    def _fetch_missing(self, step: int) -> None:
        if step in self._ownership.steps():
            try:
                self._get_ready(step)
            except DamageError as error:
                raise refusals.damaged(self._path(step), str(error)) from None

    def _quarantine(self, step: int, reason: str) -> Path:
        if os.path.lexists(self._path(step)):
            return super()._quarantine(step, reason)
        return self._path(step)

    def _report(self, event: str, **fields: Any) -> None:
        self.report(event, **fields)  # which is set after this store is opened

    def _abandon_after(self, step: int) -> None:
        if self._uploader is not None:
            self._uploader.discard_after(step)
            with refusals.of_local_copy(self.directory):
                self._ownership.abandon_after(step)


def _require_apart(directory: Path, address: Address) -> None:
    """Raise ValueError where one of the two would be written into the other."""
    if address.protocol not in ("file", "local"):
        return
    remote, local = Path(address.path).resolve(), directory.resolve()
    if local == remote or local in remote.parents or remote in local.parents:
        raise ValueError(
            message(
                "`local_dir` and `checkpoint_dir` overlap.",
                received=f"{directory} and {address}",
                hint="Use two directories, neither of them in the other.",
            )
        )
