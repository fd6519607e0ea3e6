"""When a checkpoint is due, and its way from a snapshot to a commit.

The training's thread decides and hands over the snapshot; the writer's thread writes,
commits, prunes and tells the events. One snapshot is in flight at most: where saves are
due faster than the disk takes them they are spaced out, so that memory stays bounded
and training does not wait. What must not be left out is waited for: the end of a run,
and the ends of epochs where ``keep`` looks for the best of them.
"""

import logging
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Literal

from resilient.checkpoints.store import Store
from resilient.errors import CheckpointWriteError
from resilient.events import Events
from resilient.policies import KeepPolicy, SavePolicy
from resilient.progress import Progress
from resilient.record import Content
from resilient.writer import Writer

logger = logging.getLogger(__name__)

OnSaveError = Literal["raise", "warn"]

# A device that is told of steps ahead of time has caught up when a snapshot was taken.
# The write begins when training is ahead again, and can spare the interpreter.
_HEAD_START = 0.015  # seconds
_SHARE = 0.25  # of the time since the last save, at most


class Saving:
    """Saves when the policy says so, prunes, and tells the events.

    A context: leaving it waits for the write in flight.

    Args:
        store: Where checkpoints go.
        policy: When to save.
        keep: What to keep.
        events: Told of every save.
        environment: Versions, for the manifest.
        on_error: ``"raise"`` the ``CheckpointWriteError`` of a failed save, at the next
            batch or at the end of fit, or ``"warn"`` and train on.
        now: A clock in seconds that does not go back.
    """

    def __init__(
        self,
        store: Store,
        *,
        policy: SavePolicy,
        keep: KeepPolicy,
        events: Events,
        environment: Mapping[str, str],
        on_error: OnSaveError,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._policy = policy
        self._keep = keep
        self._events = events
        self._environment = environment
        self._on_error = on_error
        self._now = now
        self._writer = Writer()
        self._requested = False
        self._spaced_out = False
        self.start(Progress(0, 0, 0))

    def __enter__(self) -> "Saving":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.wait()
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"Besides, {type(failure).__name__}: {failure}")
        finally:
            self._writer.close()

    def start(self, progress: Progress) -> None:
        """Intervals count from here."""
        self._last, self._last_now = progress, self._now()

    def request(self) -> None:
        """Save at the next batch boundary, whatever the policy says."""
        self._requested = True

    def due(self, progress: Progress, *, finished: bool = False) -> bool:
        """Whether to take a snapshot now; if so, no write is in flight.

        Raises:
            CheckpointWriteError: The last save failed.
        """
        busy = self._writer.has_job and self._told(self._writer.busy)
        if not (
            finished
            or self._requested
            or self._policy.due(self._now(), progress, self._last_now, self._last)
        ):
            return False
        if busy and not finished and not (self._keep.monitors and not progress.batch):
            self._writer.hurry()
            self._space_out(progress)
            return False
        self.wait()
        return True

    def save(
        self,
        progress: Progress,
        content: Content,
        *,
        metrics: Mapping[str, float],
        finished: bool,
    ) -> None:
        """Commit a checkpoint and prune, in the background.

        Raises:
            CheckpointWriteError: The file system failed. Raised here for the end of a
                run, else at the next batch boundary; with ``on_error="warn"`` it is
                logged, and the next save that is due is the next try.
        """
        self._requested = False
        delay = min(_HEAD_START, _SHARE * (self._now() - self._last_now))
        self.start(progress)

        def job() -> None:
            try:
                self._commit_and_prune(progress, content, metrics, finished)
            finally:
                content.release()

        self._writer.start(job, delay=delay)
        if finished:
            self.wait()

    def wait(self) -> None:
        """Return when nothing is being written.

        Raises:
            CheckpointWriteError: The last save failed.
        """
        if self._writer.has_job:
            self._told(self._writer.wait)

    def _told(self, ask: Callable[[], object]) -> bool:
        """Ask the writer, and do with its error what ``on_error`` says."""
        try:
            return bool(ask())
        except CheckpointWriteError as error:
            if self._on_error == "raise":
                raise
            logger.warning("Training goes on: %s", error)
            return False
        finally:
            self._events.deliver()

    def _space_out(self, progress: Progress) -> None:
        if not self._spaced_out:
            self._spaced_out = True
            logger.warning(
                "At %s a checkpoint is due while the one before is still being "
                "written. Saves that come faster than the disk takes them are spaced "
                "out; training does not wait for them.",
                progress,
            )
            self._events.emit("spaced out", **progress.to_json())

    def _commit_and_prune(
        self,
        progress: Progress,
        content: Content,
        metrics: Mapping[str, float],
        finished: bool,
    ) -> None:
        step, began = progress.step, self._now()
        try:
            checkpoint = self._store.commit(
                progress,
                content.write,
                metrics=metrics,
                finished=finished,
                environment=self._environment,
            )
        except CheckpointWriteError as error:
            self._events.emit("save failed", step=step, error=str(error))
            raise
        pruned, failure = [], None
        try:
            pruned = self._store.prune(self._keep)
        except CheckpointWriteError as error:
            failure = error
        self._events.emit(
            "saved",
            **progress.to_json(),
            finished=finished,
            nbytes=checkpoint.nbytes,
            seconds=self._now() - began,
            pruned=pruned,
        )
        if failure is not None:  # the checkpoint is there all the same
            self._events.emit("prune failed", step=step, error=str(failure))
            raise failure
