"""What all processes do at one boundary: process 0 decides, the others follow.

Its policy says when to save, its clock how long ago that was. Whoever was asked to stop
passes that on to process 0, and all stop at the same batch.
"""

from dataclasses import dataclass
from typing import Any

from resilient.distributed.group import Group
from resilient.errors import ResilientError
from resilient.preemption.watch import Watch
from resilient.progress import Progress
from resilient.saving.checkpointer import Checkpointer
from resilient.storage import layout


@dataclass(frozen=True)
class Decision:
    """What is done at a boundary.

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
            PeerLostError: Another process is not there any more.
        """
        if self._group.count == 1:
            return self._decide(progress, finished)
        if self._group.index == 0:
            for wish in self._group.take_requests():
                self._watch.requests.ask_to_stop(**wish)
            decision = self._decide(progress, finished)
            said = {"at": _place(progress, _END if finished else ""), **vars(decision)}
            self._group.broadcast("boundary", said)
            return decision
        self._pass_on()
        said = self._group.broadcast("boundary")
        _require_same(said.pop("at"), _place(progress, _END if finished else ""))
        decision = Decision(**said)
        if decision.save is not None:
            self._saving.get_ready()
        if decision.stop is not None:
            self._watch.requests.ask_to_stop(decision.stop)
        return decision

    def out_of_batches(self, progress: Progress) -> None:
        """Make sure that no process goes on with the epoch that ends here.

        In what comes next, metrics and validation, processes wait for each other.

        Args:
            progress: Where training is.

        Raises:
            ResilientError: One does, or ended before.
        """
        here = _place(progress, "with no other batch in it")
        said = self._group.broadcast("boundary", {"at": here})
        _require_same(said["at"], here)

    def _decide(self, progress: Progress, finished: bool) -> Decision:
        stop = self._watch.requests.stop
        due = self._saving.begin_if_due(progress, must=finished or stop is not None)
        staging = layout.staging_name(progress.step) if due else None
        return Decision(staging, None if stop is None else stop.reason)

    def _pass_on(self) -> None:
        stop = self._watch.requests.stop
        if stop is not None and not self._passed_on:
            self._passed_on = True
            left = stop.until - self._watch.requests.now()
            self._group.request({"reason": stop.reason, "grace": left})


_END = "at the end of the run"


def _place(progress: Progress, where: str) -> list[Any]:
    return [progress.step, progress.epoch, progress.batch, where]


def _require_same(said: list[Any], here: list[Any]) -> None:
    """Raise where processes went different ways: another loop, other data."""
    if said == here:
        return
    raise ResilientError(
        "The processes of this training are at different places: they cannot go on "
        "together.",
        received=f"process 0 {_told(*said)}; this process {_told(*here)}",
        hint="Give all processes data of the same number of batches, and let callbacks "
        "set stop_training in all of them.",
    )


def _told(step: int, epoch: int, batch: int, where: str) -> str:
    text = f"after batch {step:,} of the run (epoch {epoch + 1}, batch {batch:,})"
    return f"{text}, {where}" if where else text
