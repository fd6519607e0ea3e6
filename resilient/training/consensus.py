"""Agrees on what all processes do at a boundary: process 0 decides, the others follow.

Its policy and its clock decide when to save. A process that was asked to stop passes
the request to process 0, and all stop at the same batch.
"""

from dataclasses import dataclass

from resilient.distributed.group import Group
from resilient.errors import ResilientError
from resilient.preemption.watch import Watch
from resilient.progress import Progress
from resilient.saving.checkpointer import Checkpointer
from resilient.storage import layout


@dataclass(frozen=True)
class Decision:
    """What to do at a boundary.

    Attributes:
        save: Name of the staging directory, if a snapshot is due.
        stop: Who asked to stop, if training stops once that is saved.
    """

    save: str | None
    stop: str | None


class BoundaryConsensus:
    """Decides at each boundary of a fit.

    Args:
        group: The processes that train.
        saving: Says when a checkpoint is due.
        watch: Knows whether this process was asked to stop.
    """

    def __init__(self, group: Group, saving: Checkpointer, watch: Watch) -> None:
        self._group, self._saving, self._watch = group, saving, watch
        self._passed_on = False

    def at(self, progress: Progress, *, finished: bool = False) -> Decision:
        """What to do at this boundary; if that is to save, no write is in flight.

        Args:
            progress: Where training is.
            finished: Whether it is the end of the run.

        Raises:
            CheckpointWriteError: The last save failed.
            PeerLostError: Another process is gone.
        """
        if self._group.count == 1:
            return self._decide(progress, finished)
        here = f"{progress}, at the end of the run" if finished else str(progress)
        if self._group.index == 0:
            for request in self._group.take_requests():
                self._watch.requests.ask_to_stop(**request)
            decision = self._decide(progress, finished)
            self._group.broadcast("boundary", {"at": here, **vars(decision)})
            return decision
        self._pass_on()
        said = self._group.broadcast("boundary")
        _require_same(said.pop("at"), here)
        decision = Decision(**said)
        if decision.save is not None:
            self._saving.finish_previous()
        if decision.stop is not None:
            self._watch.requests.ask_to_stop(decision.stop)
        return decision

    def out_of_batches(self, progress: Progress) -> None:
        """Make sure that no process continues the epoch that ends here.

        Processes wait for each other in what comes next: metrics and validation.

        Args:
            progress: Where training is.

        Raises:
            ResilientError: One does, or has already ended.
        """
        here = f"{progress}, with no more batches in the epoch"
        said = self._group.broadcast("boundary", {"at": here})
        _require_same(said["at"], here)

    def _decide(self, progress: Progress, finished: bool) -> Decision:
        stop = self._watch.requests.stop
        due = self._saving.ready_to_save(progress, must=finished or stop is not None)
        staging = layout.staging_name(progress.step) if due else None
        return Decision(staging, None if stop is None else stop.reason)

    def _pass_on(self) -> None:
        stop = self._watch.requests.stop
        if stop is not None and not self._passed_on:
            self._passed_on = True
            left = stop.until - self._watch.requests.now()
            self._group.request({"reason": stop.reason, "grace": left})


def _require_same(said: str, here: str) -> None:
    """Raise if processes diverged: a different loop, or different data."""
    if said != here:
        raise ResilientError(
            "The processes of this training are at different steps, so they cannot "
            "continue together.",
            received=f"process 0 is at {said}; this process is at {here}",
            hint="Give all processes the same number of batches, and let callbacks "
            "set stop_training in all of them.",
        )
