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

from resilient.errors import ResilientError
from resilient.policies import KeepPolicy
from resilient.storage import files, layout
from resilient.storage.checkpoint import Checkpoint
from resilient.storage.remote.objects import StoreError
from resilient.storage.remote.remote_run import GoneError, RemoteRun

logger = logging.getLogger(__name__)

_running = weakref.WeakSet["Uploader"]()

_RETRY_AFTER = 20.0  # seconds after which a store that failed is tried again
_EVENTS_EVERY = 30.0  # seconds between copies of events: each is a whole file


class Uploader:
    """Uploads until it is closed.

    Args:
        remote: The run in the store; from now on only the thread changes it.
        own: Makes the run this process's in the store, if it is not yet, and informs
            it of what was abandoned.
        report: Records an event.

    Attributes:
        failed: Why the last try failed; None if it did not.
        fatal: Why nothing can be uploaded any more, whatever the retries.
    """

    def __init__(
        self, remote: RemoteRun, own: Callable[[], None], report: Callable[..., None]
    ) -> None:
        self.failed: StoreError | None = None
        self.fatal: ResilientError | None = None
        self._remote, self._own, self._event = remote, own, report
        self._side_files, self._events_at = SideFiles(remote), 0.0
        self._changed = threading.Condition()  # guards all that follows
        self._waiting: dict[int, Checkpoint] = {}
        self._current: Checkpoint | None = None
        self._pruning: tuple[KeepPolicy, int] | None = None
        self._hurry = self._gave_up = self._closing = False
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

    def add(self, checkpoint: Checkpoint) -> None:
        """Upload a checkpoint, unless a newer one makes it superfluous first."""
        with self._changed:
            self._hurry = self._gave_up = False
            self._waiting[checkpoint.step] = checkpoint
            self._drop_superfluous()

    def prune(self, keep: KeepPolicy, upto: int) -> None:
        """Delete what the policy does not select, once the newest is uploaded."""
        with self._changed:
            self._pruning = keep, upto
            self._drop_superfluous()

    def discard_after(self, step: int) -> None:
        """Forget checkpoints after a step: they have been abandoned."""
        with self._changed:
            self._waiting = {s: each for s, each in self._waiting.items() if s <= step}
            if self._pruning is not None:
                keep, upto = self._pruning
                self._pruning = keep, min(upto, step)
            self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """Wait for all uploads; whether they are done, or cannot be.

        Without rest from now on: a store that failed is tried once more, at once.
        """
        with self._changed:
            if not self._hurry:
                self._hurry = True
                self._drop_superfluous()
            return self._changed.wait_for(self._is_done, seconds)

    def close(self, seconds: float) -> None:
        """Stop; anything not uploaded stays in the local directory."""
        with self._changed:
            self._closing = True
            self._waiting.clear()
            self._changed.notify_all()
        self._thread.join(seconds)
        with self._changed:
            self._remote.objects.abandoned.set()

    def leave_to_parent(self) -> None:
        """This process was forked: the thread is another's, with what it has to do."""
        self._changed = threading.Condition()  # the thread may have held the former
        self._waiting, self._pruning, self.fatal = {}, None, None

    # On the thread. -------------------------------------------------------------------

    def _run(self) -> None:
        while self._wait_for_work():
            failed = None
            try:
                self._work()
            except GoneError:
                continue  # whether the store works is not known
            except StoreError as error:
                failed = error
            except ResilientError as error:  # another run has taken over, say
                with self._changed:
                    self.fatal = error
                    self._changed.notify_all()
                return
            except Exception as error:  # whatever it is, training goes on
                text = f"{type(error).__name__}: {error}"
                failed = StoreError(text, transient=False)
            self._end_try(failed)
        if self.failed is None:
            with contextlib.suppress(StoreError, OSError):
                self._side_files.put_events()

    def _wait_for_work(self) -> bool:
        """Wait until there is something to do; False at the end."""
        with self._changed:
            if self.failed is not None and not self._hurry:
                self._changed.wait_for(
                    lambda: self._hurry or self._closing, _RETRY_AFTER
                )
            self._changed.wait_for(lambda: self._closing or not self._is_done())
            return not self._closing

    def _is_done(self) -> bool:
        has_work = bool(self._waiting) or self._pruning is not None
        return not has_work or self.fatal is not None or self._gave_up

    def _work(self) -> None:
        # In this order: what is read first is not newer than what the store then knows.
        # A rollback abandons checkpoints before it writes down what is skipped.
        with self._changed:
            newest = max(self._waiting, default=-1)
            current = self._current = self._waiting.get(newest)
        rollbacks = self._side_files.rollbacks()
        self._own()
        self._side_files.put_rollbacks(rollbacks)
        if current is not None and self._is_wanted(current):
            self._upload(current)
        self._prune()  # even where saves come faster than uploads
        if time.monotonic() - self._events_at > _EVENTS_EVERY or self._hurry:
            self._side_files.put_events()
            self._events_at = time.monotonic()

    def _is_wanted(self, checkpoint: Checkpoint) -> bool:
        with self._changed:
            return self._waiting.get(checkpoint.step) is checkpoint

    def _upload(self, checkpoint: Checkpoint) -> None:
        step, began = checkpoint.step, time.monotonic()
        try:
            if not self._remote.has(checkpoint):
                self._remote.upload(checkpoint, lambda: self._is_wanted(checkpoint))
                seconds, nbytes = time.monotonic() - began, checkpoint.nbytes
                self._report("uploaded", step=step, nbytes=nbytes, seconds=seconds)
        except GoneError as error:
            if self._is_wanted(checkpoint):  # nobody has abandoned it
                logger.warning("Step %d is not uploaded: %s", step, error)
            self._forget(checkpoint)
            raise
        self._forget(checkpoint)

    def _forget(self, checkpoint: Checkpoint) -> None:
        with self._changed:
            if self._waiting.get(checkpoint.step) is checkpoint:
                del self._waiting[checkpoint.step]
            self._drop_superfluous()

    def _prune(self) -> None:
        pruning = self._pruning
        if pruning is None:
            return
        self._remote.prune(*pruning)
        self._remote.delete_unfinished()
        with self._changed:
            if self._pruning is pruning and not self._waiting:
                self._pruning = None
            self._changed.notify_all()

    def _drop_superfluous(self) -> None:
        """Forget what would be deleted right after its upload. Needs the lock.

        Not what is being uploaded, unless somebody waits: or the store would never get
        any, where saves come faster than uploads.
        """
        if self._pruning is not None and self._waiting:
            keep, upto = self._pruning
            every = self._remote.checkpoints | self._waiting
            kept = keep.select(every.values()) | {max(self._waiting)}
            for step, each in [*self._waiting.items()]:
                stays = step in kept or (each is self._current and not self._hurry)
                if step <= upto and not stays:
                    del self._waiting[step]
        self._changed.notify_all()

    def _report(self, event: str, **fields: object) -> None:
        with self._changed:
            if not self._remote.objects.abandoned.is_set():
                self._event(event, **fields)

    def _end_try(self, error: StoreError | None) -> None:
        """Note whether the store works; warn once where that has changed."""
        with self._changed:
            changed = (self.failed is None) != (error is None)
            if changed and not self._remote.objects.abandoned.is_set():
                if error is None:
                    logger.warning("The object store accepts checkpoints again.")
                else:
                    logger.warning(
                        "The object store does not accept checkpoints: %s. Training "
                        "continues, and they stay in %s until it does.",
                        error,
                        self._remote.directory,
                    )
                    self._event("upload failed", error=str(error))
            self.failed = error
            self._gave_up = error is not None and self._hurry
            self._changed.notify_all()


def _leave_to_parent() -> None:
    for uploader in list(_running):
        uploader.leave_to_parent()


if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=_leave_to_parent)


_UNKNOWN = b"not known"


class SideFiles:
    """``rollbacks.json`` and the events of all processes, local and remote.

    Args:
        remote: The run in the store.
    """

    def __init__(self, remote: RemoteRun) -> None:
        self._remote, self._directory = remote, remote.directory
        self._objects = remote.objects
        self._put: bytes | None = _UNKNOWN

    def rollbacks(self) -> bytes | None:
        """Read which batches the run skips; None if it skips none."""
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
            self._objects.delete(layout.ROLLBACKS)
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

    def get(self) -> None:
        """Make those of the local directory what they are in the store.

        Raises:
            StoreError: The store fails.
            OSError: The local file system does.
        """
        names = self._remote.names
        of_events = {name for name in names if layout.events_process(name) is not None}
        local = layout.events_names(self._directory)
        for name in {layout.ROLLBACKS, *of_events, *local}:
            if name in names and names[name] <= files.EVENTS_BYTES:
                beside = self._directory / files.unfinished_name(name)
                self._objects.receive(name, beside, names[name])
                os.replace(beside, self._directory / name)
            else:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._directory / name)
        files.sync(self._directory)
