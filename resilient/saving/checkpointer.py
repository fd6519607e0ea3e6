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
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Literal

from resilient.distributed.group import ALONE, Group
from resilient.errors import CheckpointWriteError
from resilient.policies import Cost, KeepPolicy, SavePolicy
from resilient.policies.save_cost import CostMeter
from resilient.progress import Progress
from resilient.saving.commit import Committer
from resilient.saving.record import PendingCheckpoint
from resilient.saving.writer import BackgroundWriter
from resilient.storage.store import Store
from resilient.telemetry.events import Events

logger = logging.getLogger(__name__)

OnSaveError = Literal["raise", "warn"]

# A device that is told of steps ahead of time has caught up when a snapshot was taken.
# The write begins when training is ahead again, and can spare the interpreter.
_HEAD_START = 0.015  # seconds
_SHARE = 0.25  # of the time since the last save, at most


class Checkpointer:
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
        say: Tells the user what was chosen, in a line.
        group: The processes that train: each writes its part, process 0 commits.
        waiting: Entered while a write is waited for.
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
        say: Callable[[str], None],
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
        group: Group = ALONE,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._committer = Committer(
            store,
            keep=keep,
            events=events,
            environment=environment,
            group=group,
            now=now,
        )
        self._policy = policy
        self._keep = keep
        self._events = events
        self._on_error = on_error
        self._say, self._waiting = say, waiting
        self._now = now
        self._writer = BackgroundWriter()
        self._meter = CostMeter()
        self._due_since = 0.0
        self._chosen = False  # whether the interval was said
        self._requested = False
        self._spaced_out = False
        self.start(Progress(0, 0, 0))

    def __enter__(self) -> "Checkpointer":
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

    @property
    def slowest(self) -> float | None:
        """Seconds that a save took at the worst; None before there was one."""
        return self._meter.slowest

    @property
    def newest(self) -> int | None:
        """The step that was committed last."""
        return self._committer.newest

    def request(self) -> None:
        """Save at the next batch boundary, whatever the policy says."""
        self._requested = True

    def begin_if_due(self, progress: Progress, *, must: bool = False) -> bool:
        """Whether to take a snapshot now; if so, no write is in flight.

        Args:
            progress: Where training is.
            must: Whether there has to be one: at the end of a run, or of a process.

        Raises:
            CheckpointWriteError: The last save failed.
        """
        now = self._now()
        busy = self._writer.has_job and self._told(self._writer.busy)
        self._meter.batch(now, progress, busy=busy)
        cost = self._meter.cost
        if cost is not None and not self._chosen:
            self._tell_interval(cost)
        if not (
            must
            or self._requested
            or self._policy.due(now, progress, self._last_now, self._last, cost)
        ):
            return False
        if busy and not must and not (self._keep.monitors and not progress.batch):
            self._writer.start_now()
            self._space_out(progress)
            return False
        self.get_ready(now)
        return True

    def get_ready(self, now: float | None = None) -> None:
        """A snapshot is due (since ``now``): wait for the write before it.

        Raises:
            CheckpointWriteError: That failed.
        """
        self._due_since = self._now() if now is None else now
        self.wait()

    def stalled(self) -> float:
        """Seconds since a snapshot was due: training waited for it that long."""
        return self._now() - self._due_since

    def save(
        self,
        progress: Progress,
        content: PendingCheckpoint,
        *,
        metrics: Mapping[str, float],
        finished: bool,
        staging: str | None = None,
        stall: float = 0.0,
    ) -> None:
        """Commit a checkpoint and prune, in the background.

        Args:
            progress: Where training was when the snapshot was taken.
            content: The snapshot, and all that belongs to it.
            metrics: The logs of the epoch that ended, if one did.
            finished: Whether this is the end of the run, which is waited for.
            staging: Name of the staging directory, if processes agreed on one.
            stall: Seconds that training waited for the snapshot.

        Raises:
            CheckpointWriteError: The file system failed. Raised here for the end of a
                run, else at the next batch boundary; with ``on_error="warn"`` it is
                logged, and the next save that is due is the next try.
        """
        self._requested = False
        delay = min(_HEAD_START, _SHARE * (self._now() - self._last_now))
        self.start(progress)
        self._meter.saved(self._last_now, progress, stall)

        def job() -> None:
            began = self._now()
            try:
                self._committer.commit_and_prune(
                    progress,
                    content.write,
                    metrics=metrics,
                    finished=finished,
                    staging=staging,
                    stall=stall,
                )
            finally:
                content.release()
                self._meter.write = self._now() - began

        self._writer.start(job, delay=delay)
        if finished:
            self.wait()

    def wait(self) -> None:
        """Return when nothing is being written.

        Raises:
            CheckpointWriteError: The last save failed.
        """
        if self._writer.has_job:
            with self._waiting():
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

    def _tell_interval(self, cost: Cost) -> None:
        self._chosen = True
        if not self._policy.autos:
            return
        seconds = self._policy.seconds_between(cost)
        assert seconds is not None
        loss = seconds / 2 + cost.write
        self._events.emit(
            "interval", seconds=seconds, cost=cost.training, expected_loss=loss
        )
        self._say(
            f"Saves about every {seconds:,.1f} s: one costs {cost.training:.3f} s of "
            f"training. A kill loses about {loss:,.1f} s of it."
        )

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
