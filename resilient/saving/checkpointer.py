"""Decides when a checkpoint is due, and sees it from snapshot to commit.

The training thread decides and hands over the snapshot; the writer's thread writes,
commits, prunes and emits events, see ``writer``. At most one snapshot is in flight:
saves that fall due faster than the disk can write are spaced out, so memory stays
bounded and training does not wait. Training does wait for saves that must not be
skipped: the end of a run, and the ends of epochs if ``keep`` compares them.
"""

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Literal

from resilient.errors import CheckpointWriteError
from resilient.policies import Cost, SavePolicy
from resilient.policies.interval import CostMeter
from resilient.progress import Progress
from resilient.saving.snapshot import Snapshot
from resilient.saving.writer import BackgroundWriter, Committer

logger = logging.getLogger(__name__)

OnSaveError = Literal["raise", "warn"]

# Taking a snapshot drains the device's queue of steps. The write begins when training
# is ahead again and can spare the interpreter.
_HEAD_START = 0.015  # seconds
_SHARE = 0.25  # at most this share of the time since the last save


class Checkpointer:
    """Saves when the policy says so, prunes, and emits events.

    A context: leaving it waits for the write in flight.

    Args:
        committer: Commits and prunes.
        policy: When to save.
        on_error: ``"raise"`` the ``CheckpointWriteError`` of a failed save, at the next
            batch or at the end of fit, or ``"warn"`` and train on.
        waiting: Entered while waiting for a write.
    """

    def __init__(
        self,
        committer: Committer,
        *,
        policy: SavePolicy,
        on_error: OnSaveError,
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._committer, self._policy, self._on_error = committer, policy, on_error
        self._waiting = waiting
        self._keep, self._events = committer.keep, committer.events
        self._now = committer.now
        self._writer = BackgroundWriter(committer.process)
        self._meter = CostMeter()
        self._due_since = 0.0
        self._announced = False  # whether the interval has been printed
        self._requested = False
        self._spaced_out = self._postponed = False
        self.start(Progress(0, 0, 0))

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        with self._writer.closing(error):
            self.wait()

    def start(self, progress: Progress) -> None:
        """Intervals count from here; nothing after it is committed yet."""
        self._committer.newest = None
        self._last, self._last_now = progress, self._now()
        # Between batches, none is due before this step and these seconds after it.
        self._idle_until, self._idle_for = 0.0, 0.0

    @property
    def slowest(self) -> float | None:
        """The longest time a save has taken, in seconds; None before the first."""
        return self._meter.slowest

    @property
    def newest(self) -> int | None:
        """The step of the last save, if it was committed."""
        return self._committer.newest

    def request(self) -> None:
        """Save at the next batch boundary, whatever the policy says."""
        self._requested = True

    def save_without_pruning(self) -> None:
        """Save at the next boundary, and delete nothing from now on."""
        self._committer.prunes = False
        self.request()

    def ready_to_save(self, progress: Progress, *, must: bool = False) -> bool:
        """Whether a snapshot is due, and none is in flight any more.

        Args:
            progress: Where training is.
            must: Whether a save is required: at the end of a run or of a process.

        Raises:
            CheckpointWriteError: The last save failed.
        """
        now, busy = self._now(), False
        if self._writer.has_job:
            with self._failure_reported():
                busy = self._writer.busy()
        elif (
            progress.batch
            and progress.step < self._idle_until
            and now - self._last_now < self._idle_for
            and not (must or self._requested)
        ):
            self._meter.latest = (now, progress)
            return False
        self._meter.write = self._committer.seconds
        self._meter.batch(now, progress, busy=busy)
        cost = self._meter.cost
        if cost is not None and not self._announced:
            self._announce_interval(cost)
        if not (
            must
            or self._requested
            or self._policy.due(now, progress, self._last_now, self._last, cost)
        ):
            if not busy:
                seconds = self._policy.seconds_between(cost)
                self._idle_for = math.inf if seconds is None else seconds
                self._idle_until = self._policy.next_step(self._last)
            return False
        if busy and not must and not (self._keep.monitors and not progress.batch):
            self._writer.start_now()
            self._space_out(progress)
            return False
        self.finish_previous(now)
        return True

    def finish_previous(self, now: float | None = None) -> None:
        """Wait for the previous write, since a snapshot is due (from ``now`` on).

        Raises:
            CheckpointWriteError: That write failed.
        """
        self._due_since = self._now() if now is None else now
        self.wait()

    def stalled(self) -> float:
        """Seconds since a snapshot fell due: how long training has waited."""
        return self._now() - self._due_since

    def submit(self, snapshot: Snapshot) -> None:
        """Commit a snapshot and prune, in the background; wait at the end of a run.

        Raises:
            CheckpointWriteError: The file system failed. Raised here at the end of a
                run, otherwise at the next batch boundary; with ``on_error="warn"`` it
                is logged, and the next due save tries again.
        """
        snapshot = replace(snapshot, postponed=self._postponed)
        self._requested = self._postponed = False
        delay = min(_HEAD_START, _SHARE * (self._now() - self._last_now))
        self.start(snapshot.progress)
        self._meter.saved(self._last_now, snapshot.progress, snapshot.stall)
        self._writer.start(snapshot, delay=delay)
        if snapshot.finished:
            self.wait()

    def wait(self) -> None:
        """Return when nothing is being written.

        Raises:
            CheckpointWriteError: The last save failed.
        """
        if self._writer.has_job:
            with self._waiting(), self._failure_reported():
                self._writer.wait()

    @contextmanager
    def _failure_reported(self) -> Iterator[None]:
        """Raise or log the error of a save, as ``on_error`` says; deliver events."""
        try:
            yield
        except CheckpointWriteError as error:
            if self._on_error == "raise":
                raise
            logger.warning("Training continues: %s", error)
        finally:
            self._events.deliver()

    def _announce_interval(self, cost: Cost) -> None:
        self._announced = True
        if not self._policy.autos:
            return
        seconds = self._policy.seconds_between(cost)
        assert seconds is not None
        self._events.emit("interval", seconds=seconds, cost=cost.training)

    def _space_out(self, progress: Progress) -> None:
        self._postponed = True
        if not self._spaced_out:
            self._spaced_out = True
            self._events.emit("spaced out", **progress._asdict())
