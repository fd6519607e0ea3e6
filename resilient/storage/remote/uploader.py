"""Copies committed checkpoints to the object store on a background thread.

The newest goes first. Of the waiting ones, only what the keep policy would keep is
uploaded, so a slow link skips checkpoints and never delays a save. An upload in
progress is finished, unless somebody waits for the newest. While the store is
unavailable, everything stays in the local directory and is retried.
"""

import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

from resilient.errors import ResilientError
from resilient.forked import in_forked_child
from resilient.policies import KeepPolicy
from resilient.storage import files, layout
from resilient.storage.checkpoint import Checkpoint
from resilient.storage.remote.far import Far
from resilient.storage.remote.objects import Objects, StoreError
from resilient.storage.remote.transfer import GoneError, Transfer

logger = logging.getLogger(__name__)

_running = weakref.WeakSet["Uploader"]()

_AGAIN = 20.0  # seconds after which a store that failed is tried again
_EVENTS_EVERY = 30.0  # seconds between copies of events: each is a whole file


class Uploader:
    """Uploads until it is closed.

    Args:
        far: The run in the store; from now on only the thread uses it.
        directory: The local directory.
        own: Makes the run this process's in the store, if it is not yet; and tells it
            what was abandoned.
        report: Records an event.

    Attributes:
        fatal: Why nothing can be uploaded any more, whatever the retries.
    """

    def __init__(
        self,
        far: Far,
        directory: Path,
        own: Callable[[], None],
        report: Callable[..., None],
    ) -> None:
        self.fatal: ResilientError | None = None
        self._far, self._directory, self._own = far, directory, own
        self._report = report
        self._side_files = SideFiles(far.objects, directory)
        self._changed = threading.Condition()
        self._waiting: dict[int, Checkpoint] = {}
        self._current: Checkpoint | None = None
        self._transfers: dict[int, Transfer] = {}
        self._keep: KeepPolicy | None = None
        self._prune_upto: int | None = None
        self._failed: StoreError | None = None
        self._tries = 0
        self._tidied = self._closing = self._hurry = False
        self._events_at = 0.0
        self._thread = threading.Thread(
            target=self._run, name="resilient-upload", daemon=True
        )
        self._thread.start()
        _running.add(self)

    # Called from other threads. -------------------------------------------------------

    @property
    def waiting(self) -> set[int]:
        """Steps of the checkpoints that are not uploaded yet."""
        with self._changed:
            return set(self._waiting)

    @property
    def failed(self) -> StoreError | None:
        """Why the last try failed; None if it did not."""
        return self._failed

    def add(self, checkpoint: Checkpoint) -> None:
        """Upload a checkpoint, unless a newer one makes it superfluous first."""
        with self._changed:
            self._hurry = False
            self._waiting[checkpoint.step] = checkpoint
            self._transfers.pop(checkpoint.step, None)
            self._drop_superfluous()
            self._changed.notify_all()

    def prune(self, keep: KeepPolicy, upto: int) -> None:
        """Delete what the policy does not select, once the newest is uploaded."""
        with self._changed:
            self._keep, self._prune_upto = keep, upto
            self._drop_superfluous()
            self._changed.notify_all()

    def discard_after(self, step: int) -> None:
        """Checkpoints after a step have been abandoned."""
        with self._changed:
            for other in [other for other in self._waiting if other > step]:
                del self._waiting[other]
            if self._prune_upto is not None:
                self._prune_upto = min(self._prune_upto, step)
            self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """Wait for all uploads; whether they are done, or cannot be.

        Without rest from now on: a store that failed is tried once more, at once.
        """
        with self._changed:
            if not self._hurry:
                self._hurry, self._tries = True, 0
                self._drop_superfluous()
                self._changed.notify_all()
            self._changed.wait_for(self._is_done, seconds)
            return self._is_done()

    def close(self, seconds: float) -> None:
        """Stop; anything not uploaded stays in the local directory."""
        with self._changed:
            self._closing = True
            self._waiting.clear()
            self._changed.notify_all()
        self._thread.join(seconds)
        with self._changed:
            self._far.objects.abandoned.set()

    def leave_to_parent(self) -> None:
        """This process was forked: the thread is another's, with what it has to do."""
        self._changed = threading.Condition()  # the thread may have held the former
        self._waiting, self._prune_upto, self.fatal = {}, None, None

    @property
    def _ended(self) -> bool:
        return self._far.objects.abandoned.is_set()

    # On the thread. -------------------------------------------------------------------

    def _run(self) -> None:
        while self._wait_for_work():
            try:
                self._work()
            except StoreError as error:
                self._say_failed(error)
            except ResilientError as error:  # another run has taken over, say
                self.fatal = error
                with self._changed:
                    self._changed.notify_all()
                return
            except GoneError as error:
                self._say_gone(error)
            except Exception as error:  # whatever it is, training goes on
                text = f"{type(error).__name__}: {error}"
                self._say_failed(StoreError(text, transient=False))
            else:
                self._say_recovered()
        if self._failed is None:
            with contextlib.suppress(StoreError, OSError):
                self._side_files.put_events()

    def _wait_for_work(self) -> bool:
        """Wait until there is something to do; False at the end."""
        with self._changed:
            if self._failed is not None and not self._hurry:
                self._changed.wait_for(lambda: self._hurry or self._closing, _AGAIN)
            self._changed.wait_for(
                lambda: self._closing or (self._has_work() and not self._gave_up())
            )
            return not self._closing

    def _has_work(self) -> bool:
        return bool(self._waiting) or self._prune_upto is not None

    def _gave_up(self) -> bool:
        return self._hurry and self._tries > 0

    def _is_done(self) -> bool:
        return not self._has_work() or self.fatal is not None or self._gave_up()

    def _work(self) -> None:
        # In this order: what is read first is not newer than what the store then knows.
        # A rollback abandons checkpoints before it writes down what is skipped.
        with self._changed:
            newest = max(self._waiting, default=None)
            self._current = None if newest is None else self._waiting[newest]
        rollbacks = self._side_files.rollbacks()
        self._own()
        self._side_files.put_rollbacks(rollbacks)
        with self._changed:
            still = newest is not None and self._waiting.get(newest) is self._current
        if still and self._current is not None:
            self._upload(self._current)
        if self._prune_upto is not None:  # even where saves come faster than uploads
            self._prune()
        if time.monotonic() - self._events_at > _EVENTS_EVERY or self._hurry:
            self._side_files.put_events()
            self._events_at = time.monotonic()

    def _upload(self, checkpoint: Checkpoint) -> None:
        step = checkpoint.step
        if not self._far.has(checkpoint):
            began = time.monotonic()
            transfer = self._transfers.get(step)
            if transfer is None or not self._far.is_mine(transfer):
                transfer = self._transfers[step] = self._far.transfer(checkpoint)
            transfer.send_files(lambda: self._waiting.get(step) is checkpoint)
            self._far.commit(transfer)
            seconds = time.monotonic() - began
            nbytes = checkpoint.nbytes
            self._tell("uploaded", step=step, nbytes=nbytes, seconds=seconds)
        self._done_with(checkpoint)

    def _prune(self) -> None:
        with self._changed:
            keep, upto = self._keep, self._prune_upto
        if keep is not None and upto is not None:
            self._far.prune(keep, upto)
        if not self._tidied:
            self._far.delete_unfinished()
            self._tidied = True
        with self._changed:
            if self._prune_upto == upto and not self._waiting:
                self._prune_upto = None
            self._changed.notify_all()

    def _drop_superfluous(self) -> None:
        """Forget what would be deleted right after its upload. Needs the lock.

        Not what is being uploaded, unless somebody waits: or the store would never get
        any, where saves come faster than uploads.
        """
        if self._keep is None or not self._waiting:
            return
        newest = max(self._waiting)
        every = self._far.checkpoints | self._waiting
        kept = self._keep.select(every.values()) | {newest}
        for step, each in [*self._waiting.items()]:
            old = self._prune_upto is not None and step <= self._prune_upto
            if step not in kept and old and (self._hurry or each is not self._current):
                del self._waiting[step]

    def _done_with(self, checkpoint: Checkpoint | None) -> None:
        with self._changed:
            if checkpoint is not None:
                self._transfers.pop(checkpoint.step, None)
                if self._waiting.get(checkpoint.step) is checkpoint:
                    del self._waiting[checkpoint.step]
            self._drop_superfluous()
            self._changed.notify_all()

    def _say_gone(self, error: GoneError) -> None:
        current = self._current
        assert current is not None
        if self._waiting.get(current.step) is current:  # nobody has abandoned it
            logger.warning("Step %d is not uploaded: %s", current.step, error)
        self._done_with(current)

    def _tell(self, event: str, **fields: object) -> None:
        with self._changed:
            if not self._ended:
                self._report(event, **fields)

    def _say_failed(self, error: StoreError) -> None:
        with self._changed:
            if self._failed is None and not self._ended:
                logger.warning(
                    "The object store does not accept checkpoints: %s. Training "
                    "continues, and they stay in %s until it does.",
                    error,
                    self._directory,
                )
                self._report("upload failed", error=str(error))
            self._failed = error
            self._tries += 1
            self._changed.notify_all()

    def _say_recovered(self) -> None:
        with self._changed:
            if self._failed is not None and not self._ended:
                logger.warning("The object store accepts checkpoints again.")
            self._failed, self._tries = None, 0
            self._changed.notify_all()


@in_forked_child
def _leave_to_parent() -> None:
    for uploader in list(_running):
        uploader.leave_to_parent()


_UNKNOWN = b"not known"


class SideFiles:
    """``rollbacks.json`` and the events of all processes, near and far.

    Args:
        objects: The store.
        directory: The local directory.
    """

    def __init__(self, objects: Objects, directory: Path) -> None:
        self._objects, self._directory = objects, directory
        self._put: bytes | None = _UNKNOWN

    def rollbacks(self) -> bytes | None:
        """Which batches the run skips; None if it skips none."""
        try:
            return files.read_file(self._directory, layout.ROLLBACKS, files.JSON_BYTES)
        except FileNotFoundError:
            return None

    def put_rollbacks(self, raw: bytes | None) -> None:
        """Upload them, if they are not what the store has.

        Raises:
            StoreError: The store fails.
        """
        if raw == self._put:
            return
        if raw is None:
            self._objects.delete([layout.ROLLBACKS])
        else:
            self._objects.put(layout.ROLLBACKS, raw)
        self._put = raw

    def put_events(self) -> None:
        """Upload what has happened so far.

        Raises:
            StoreError: The store fails.
        """
        for name in layout.events_names(self._directory):
            self._objects.send(self._directory / name, name)

    def get(self, names: dict[str, int]) -> None:
        """Make those of the local directory what they are in the store.

        Args:
            names: Of the objects there, with their sizes.

        Raises:
            StoreError: The store fails.
            OSError: The local file system does.
        """
        of_events = [name for name in names if layout.events_process(name) is not None]
        for name in {
            layout.ROLLBACKS,
            *of_events,
            *layout.events_names(self._directory),
        }:
            if name in names and names[name] <= files.EVENTS_BYTES:
                beside = self._directory / files.unfinished_name(name)
                self._objects.receive(name, beside, names[name])
                os.replace(beside, self._directory / name)
            else:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._directory / name)
        files.sync(self._directory)
