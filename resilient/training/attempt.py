"""One process's attempt on a run, whoever drives it: Keras's ``fit`` or a loop by hand.

It begins, from a checkpoint or anew, and is held between two batches and at epochs'
ends. There the losses of the batches that were trained are looked at; a snapshot is
taken if one is due; and if somebody asked for it, training stops.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn, Protocol

from resilient.data.inputs import DataInputs
from resilient.progress import Progress
from resilient.saving import choose, record
from resilient.serialization.position import Positions
from resilient.storage.checkpoint import Checkpoint
from resilient.training.consensus import BoundaryConsensus
from resilient.training.divergence.loss_watch import LossWatch
from resilient.training.session import Session


class RunState(Protocol):
    """All that makes a checkpoint."""

    def after_step(self) -> None:
        """A training step was done."""

    def take(
        self,
        progress: Progress,
        positions: Positions,
        random: Any,
        *,
        logs: Mapping[str, float] | None,
    ) -> record.PendingCheckpoint:
        """Take a snapshot of everything."""


class Attempt:
    """Follows a run from where it begins in this process.

    Args:
        session: Who takes part, who is told, and who saves.
        state: All that makes a checkpoint.
        inputs: The data.
        losses: Looks at the loss of each batch.
        settle: Makes Keras's callbacks be done with the batches before.
    """

    def __init__(
        self,
        session: Session,
        state: RunState,
        inputs: DataInputs,
        *,
        losses: LossWatch,
        settle: Callable[[], None] = lambda: None,
    ) -> None:
        assert session.saving is not None
        self._session, self._state, self._inputs = session, state, inputs
        self._saving, self._watch, self._losses = session.saving, session.watch, losses
        self._consensus = BoundaryConsensus(session.group, self._saving, self._watch)
        self._settle = settle
        self._stopping = False  # agreed on by all processes
        self._taken: record.PendingCheckpoint | None = None
        self._uncommitted: Callable[[], None] | None = None
        self._begun = False

    def begin(
        self,
        resumed: Checkpoint | None,
        seconds: float,
        *,
        first: bool,
        tell: bool = True,
        over: bool = False,
    ) -> None:
        """Nothing stands in the way of training any more.

        Args:
            resumed: The checkpoint that was restored, or is about to be at its batch.
            seconds: That this took.
            first: Whether this process did not train before: then the checkpoints that
                are not wanted move away.
            tell: Whether events and the user are told of it.
            over: Whether nothing is left to train.
        """
        session = self._session
        if first and session.group.index == 0:
            options = session.options
            choose.discard(options.store, options.resume, session.events)
        if resumed is None:
            return
        self._saving.start(resumed.progress)
        if tell:
            line = f"Resumed at {resumed.progress} from {resumed.path}"
            if over:
                step = f"{resumed.step:,}"
                line = f"Nothing left to train at step {step} of {resumed.path}"
            told = {**resumed.progress.to_json(), "seconds": seconds}
            session.events.emit("restored", **told)
            session.say(line, within_epoch=not first)
        self._watch.beat("starting", resumed.progress)

    def next_batch_is_there(self) -> None:
        """Commit a snapshot that waited for the batch after it."""
        if self._commit() and self._stopping:
            self._stop()

    def between_batches(
        self, progress: Progress, logs: Mapping[str, float] | None, *, certain: bool
    ) -> None:
        """A batch is trained, the next one is not begun.

        Args:
            progress: Where training is.
            logs: Of the last epoch that ended.
            certain: Whether the next batch is sure to come. If not, a snapshot is
                committed only once it came: resumed with no batch left, Keras would
                have no logs.
        """
        self._watch.stop_unless_time(self._saving.slowest)
        decision = self._consensus.at(progress)
        self._stopping = decision.stop is not None
        if decision.save is not None:
            self._losses.check(all_of_them=True)
            self._take(progress, logs, decision.save, in_epoch=True)
            if certain and self._commit() and self._stopping:
                self._stop()

    def all_trained(self, progress: Progress) -> None:
        """This process has no other batch in this epoch; neither have the others.

        Raises:
            ResilientError: Another process goes on with this epoch.
        """
        self._consensus.out_of_batches(progress)

    def at_epoch_end(
        self, progress: Progress, logs: Mapping[str, float], *, finished: bool
    ) -> None:
        """Every callback was told that an epoch ended.

        Args:
            progress: Where training is.
            logs: Of that epoch.
            finished: Whether it is the last one.
        """
        if self._uncommitted and self._taken:  # no batch came after it
            self._taken.release()
        self._uncommitted = None
        if not finished:
            self._watch.stop_unless_time(self._saving.slowest)
        decision = self._consensus.at(progress, finished=finished)
        self._stopping = decision.stop is not None
        if decision.save is not None:
            self._take(progress, logs, decision.save, in_epoch=False, finished=finished)
            if self._commit() and self._stopping and not finished:
                self._stop()
        if finished:  # but for callbacks' on_train_end, which may take any time
            self._watch.beat("ended", progress)

    def trained(self, progress: Progress) -> None:
        """Batches were trained since the last time."""
        self._losses.check(all_of_them=False)
        self._watch.beat("training", progress)
        self._state.after_step()
        if not self._begun:
            self._begun = True
            self._session.events.emit("training", **progress.to_json())

    def _take(
        self,
        progress: Progress,
        logs: Mapping[str, float] | None,
        staging: str,
        *,
        in_epoch: bool,
        finished: bool = False,
    ) -> None:
        self._settle()
        positions, random = self._inputs.positions(in_epoch=in_epoch)
        self._taken = self._state.take(progress, positions, random, logs=logs)
        self._uncommitted = partial(
            self._saving.save,
            progress,
            self._taken,
            metrics={} if in_epoch else logs or {},
            finished=finished,
            staging=staging,
            stall=self._saving.stalled(),
        )

    def _commit(self) -> bool:
        """Make a checkpoint of the last snapshot; whether there was one."""
        commit, self._uncommitted = self._uncommitted, None
        if commit is not None:
            commit()
        return commit is not None

    def _stop(self) -> NoReturn:
        """End fit, now that the snapshot of this moment is being written."""
        self._saving.wait()
        self._watch.stop(saved=self._saving.newest == self._watch.progress.step)
