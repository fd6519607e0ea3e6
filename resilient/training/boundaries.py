"""What happens between two batches and at the end of an epoch, in fits and loops.

There the losses of trained batches are checked, a snapshot is taken if one is due, and
training stops if that was requested.

All processes do the same at a boundary: process 0 decides, by its policy and its clock,
and the others follow. A process that was asked to stop passes the request to process 0,
and all stop at the same batch.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from resilient.backends.base import HeldTensors
from resilient.data.inputs import DataInputs
from resilient.distributed.group import Group
from resilient.errors import ResilientError
from resilient.policies.keep import unlogged
from resilient.preemption.watch import Watch
from resilient.progress import Progress
from resilient.saving import choose
from resilient.saving.checkpointer import Checkpointer
from resilient.saving.snapshot import Snapshot
from resilient.storage import layout
from resilient.storage.checkpoint import Checkpoint
from resilient.storage.stores import place
from resilient.telemetry.attempts import LastAttempt
from resilient.telemetry.events import read_events
from resilient.training import rollback
from resilient.training.session import Session
from resilient.training.state import RunState, no_garbage_collection

_UNITS = (("d", 86_400), ("h", 3600), ("min", 60))


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
        stop = self._watch.requests.stop
        if stop is not None and not self._passed_on:
            self._passed_on = True
            left = stop.until - self._watch.requests.now()
            self._group.request({"reason": stop.reason, "grace": left})
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


class Boundaries:
    """The boundaries of a run, from where it begins in this process.

    Args:
        session: The processes, the events and the saves.
        state: Everything that goes into a checkpoint.
        inputs: The data.
        losses: Checks the loss of each batch, if asked to.
        settle: Waits until Keras's callbacks have seen all earlier batches.
        logged: The newest metrics of this epoch, where there are some before it ends.

    Attributes:
        unlogged: Metrics that ``keep`` compares, and no epoch has logged so far.
        consensus: Decides, the same in all processes.
    """

    def __init__(
        self,
        session: Session,
        state: RunState,
        inputs: DataInputs,
        *,
        losses: rollback.LossWatch | None = None,
        settle: Callable[[], None] = lambda: None,
        logged: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self._session, self._state, self._inputs = session, state, inputs
        self._saving, self._watch = session.saving, session.watch
        self._recorder, self._witness = session.recorder, session.witness
        self.unlogged = set(session.options.keep.monitors)
        self._losses = losses or rollback.LossWatch(None, active=False)
        self.consensus = BoundaryConsensus(session.group, self._saving, self._watch)
        self._settle, self._logged = settle, logged
        self._stopping = False  # agreed on by all processes
        self._taken: Snapshot | None = None  # the last one, whose memory is reused
        self._uncommitted: Snapshot | None = None  # waits for the next batch
        self._begun = False
        self._unsettled = True  # whether the state still changes with steps

    def begin(
        self,
        progress: Progress,
        resumed: Checkpoint | None,
        seconds: float,
        *,
        first: bool,
        over: str | None = None,
    ) -> None:
        """Everything is ready for training.

        Args:
            progress: Where training begins.
            resumed: The checkpoint that was restored, or will be at its batch; None:
                there is none, or it has been reported.
            seconds: How long that took.
            first: Whether this process has not trained before: then checkpoints that
                ``resume`` passes over are moved away.
            over: Why nothing is left to train, in words; None if something is.
        """
        session, store = self._session, self._session.options.store
        if first and session.group.index == 0:
            choose.discard(store, session.resume, session.events)
            if session.resume == "never":
                rollback.forget(store.directory)
        self._saving.start(progress)
        continues = session.alike and session.resume in ("auto", "must")
        compares = continues and not session.training
        if compares:  # an attempt in this directory saved the checkpoint, or resumed it
            found = read_events(store.directory, having=['"saved"', '"restored"'])
            compares = any(each.get("step") == progress.step for each in found)
        skips = rollback.read(store.directory)
        count = self._witness.begin(progress.step, skips, compares=compares)
        recorder = self._recorder
        if recorder is not None and recorder.begin(progress) and resumed is None:
            recorder.add(self._snapshot(progress, None, in_epoch=False))
        if resumed is None:
            if first and not progress.step:
                session.say(
                    f"Saving to {store} {session.options.save_policy.words}; kill it "
                    "at any time and run it again."
                )
            return
        where, last = place(store, resumed), session.last if first else None
        line = f"Resumed at {progress} from {where}"
        if over is not None:
            line = nothing_left(f"step {progress.step:,} of {where}") + over
        elif last is not None:
            line += f"\n{ending(last, progress.step)}. Restored in {seconds:.2f} s."
            line += " No batch to compare." if compares and not count else ""
        session.events.emit("restored", **progress._asdict(), seconds=seconds)
        session.say(line, within_epoch=not first)
        self._watch.beat("starting", progress)

    def commit(self) -> None:
        """Commit the last snapshot, if it still waits for the next batch."""
        if self._uncommitted is None:
            return
        snapshot, self._uncommitted = self._uncommitted, None
        self._saving.submit(snapshot)
        if self._stopping and not snapshot.finished:
            self._saving.wait()
            self._watch.stop(saved=self._saving.newest == self._watch.progress.step)

    def between_batches(
        self,
        progress: Progress,
        *,
        certain: Callable[[], bool],
        save: bool = True,
    ) -> None:
        """A batch is trained, and the next one has not begun.

        A snapshot that waited for that batch is committed.

        Args:
            progress: Where training is.
            certain: Whether there certainly is a next batch. If not, a snapshot is
                committed only once it has come: after a resume with no batch left,
                Keras would have no logs.
            save: Whether saving and stopping are possible here at all.
        """
        self.commit()
        self.trained(progress)
        if not save:
            return
        self._record(progress)
        if self._watch.stopping:
            self._watch.stop_unless_time(self._saving.slowest)
        decision = self.consensus.at(progress)
        self._stopping = decision.stop is not None
        if decision.save is not None:
            self._losses.check(all_of_them=True)
            self._take(progress, decision.save, in_epoch=True)
            if certain():
                self.commit()

    def at_epoch_end(
        self,
        progress: Progress,
        logs: Mapping[str, float] | None,
        *,
        finished: bool,
        validates: bool = True,
    ) -> None:
        """An epoch has ended, callbacks included.

        Args:
            progress: Where training is.
            logs: Of that epoch; None: there has been no epoch yet.
            finished: Whether it was the last one.
            validates: Whether a later epoch may be validated if this one was not.

        Raises:
            ValueError: ``keep`` monitors an unknown metric. This epoch is saved.
        """
        if logs:
            self._session.events.emit("metrics", **progress._asdict(), logs=logs)
        unknown = unlogged(self.unlogged, logs, validates=validates)
        if unknown is not None:
            self._saving.save_without_pruning()
        self._witness.check(progress.step)
        if self._uncommitted is not None:  # no batch followed
            self._uncommitted.tensors.release()
        self._uncommitted = None
        self._record(progress, at_end=finished, in_epoch=False)
        if not finished:
            self._watch.stop_unless_time(self._saving.slowest)
        decision = self.consensus.at(progress, finished=finished)
        self._stopping = decision.stop is not None
        if decision.save is not None:
            self._take(
                progress, decision.save, in_epoch=False, logs=logs, finished=finished
            )
            self.commit()
        if unknown is not None:
            self._saving.wait()
            raise unknown
        if finished:  # except for callbacks' on_train_end, which may take any time
            self._watch.beat("ended", progress)

    def trained(self, progress: Progress) -> None:
        """Note that batches were trained."""
        if self._losses.active:
            self._losses.check(all_of_them=False)
        self._watch.beat("training", progress)
        self._witness.trained(progress.step, self._state.leaves_after, self._settle)
        if self._unsettled:
            self._unsettled = self._state.after_step()
        if not self._begun:
            self._begun = self._session.training = True
            self._session.events.emit("training", **progress._asdict())

    def _take(
        self,
        progress: Progress,
        staging: str,
        *,
        in_epoch: bool,
        logs: Mapping[str, float] | None = None,
        finished: bool = False,
    ) -> None:
        before = None if self._taken is None else self._taken.tensors
        taken = self._snapshot(progress, before, in_epoch=in_epoch)
        self._witness.check(progress.step)
        self._witness.saved()
        if in_epoch and (newest := self._logged()):
            self._session.events.emit("metrics", **progress._asdict(), logs=newest)
        self._taken = self._uncommitted = replace(
            taken,
            metrics=logs or {},
            finished=finished,
            staging=staging,
            stall=self._saving.stalled(),
        )

    def _record(
        self, progress: Progress, *, at_end: bool = False, in_epoch: bool = True
    ) -> None:
        """Record a digest of the state, where that is asked for."""
        recorder = self._recorder
        if recorder is not None and recorder.is_due(progress, at_end=at_end):
            taken = self._snapshot(progress, recorder.spare, in_epoch=in_epoch)
            recorder.add(taken)

    @no_garbage_collection()
    def _snapshot(
        self, progress: Progress, reuse: HeldTensors | None, *, in_epoch: bool
    ) -> Snapshot:
        self._settle()
        positions, random = self._inputs.positions(in_epoch=in_epoch)
        return self._state.take(progress, positions, random, reuse=reuse)


def nothing_left(where: str) -> str:
    """Describe a run that is complete."""
    return f"Nothing left to train at {where}"


def ending(last: LastAttempt, resumed: int, now: float | None = None) -> str:
    """Describe how an attempt ended, and what of it is trained again.

    Args:
        last: The attempt.
        resumed: The step at which the run resumes.
        now: The time, in Unix seconds.
    """
    seconds = max(0.0, (time.time() if now is None else now) - last.time)
    line = f"The last attempt {last.how} {_ago(seconds)}"
    if last.step is None or last.step < resumed:
        return line
    lost, about = last.step - resumed, "" if last.certain else "about "
    line += f" at {about}step {last.step:,}"
    batches = "batch" if lost == 1 else "batches"
    return f"{line}: {about}{lost:,} {batches} will be trained again" if lost else line


def _ago(seconds: float) -> str:
    for unit, size in _UNITS:
        if seconds >= 2 * size:
            return f"{seconds // size:,.0f} {unit} ago"
    return f"{seconds:,.0f} s ago"
