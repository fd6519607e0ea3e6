"""Drives an attempt from Keras's ``fit``: what happens when that gives us control.

The hook and the iterators call in from Keras's loop, in the order of a fit. Here a
checkpoint is checked and restored (all of it, or none), and the run's progress counted.
"""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import keras

from resilient.backends import get_backend
from resilient.data.inputs import DataInputs
from resilient.data.shard import ShardedData
from resilient.keras_internals import dispatch
from resilient.objects.callbacks.capture import CallbackStates, monitored
from resilient.objects.makeup.makeup import Makeup
from resilient.progress import Progress
from resilient.serialization.position import Positions
from resilient.serialization.state_dict import StatefulObjects
from resilient.state import replicas
from resilient.state.fingerprint import RunFingerprint
from resilient.storage.checkpoint import Checkpoint
from resilient.training.attempt import Attempt
from resilient.training.divergence import rollback
from resilient.training.divergence.loss_watch import LossWatch
from resilient.training.divergence.rollback import Skip, left_out
from resilient.training.fit.iterators import TrainingIterator
from resilient.training.fit.resumption import Resumption
from resilient.training.fit.run_state import FitState
from resilient.training.session import Session


class FitAttempt:
    """Follows one ``fit`` of one model.

    Args:
        model: The compiled model.
        session: Who takes part, who is told, and who saves.
        resumption: What it resumes from; None starts a new run.
        imported: The checkpoint that an import made, if it begins with that.
        stateful: The user's own objects, by name.
        losses: Looks at the loss of each batch.
        skips: The rollbacks of this run: batches that it leaves out.
        since: Of the attempt in this process that a rollback undoes.
        seconds: That reading the checkpoint took.
    """

    def __init__(
        self,
        model: keras.Model,
        session: Session,
        *,
        resumption: Resumption | None,
        imported: Checkpoint | None,
        stateful: StatefulObjects,
        losses: LossWatch,
        skips: Sequence[Skip],
        since: FitState | None,
        seconds: float,
    ) -> None:
        self.model, self.session, self.parallel = model, session, session.parallel
        self.losses, self.saving = losses, session.checkpointer(within_epoch=True)
        self._resumption, self._imported = resumption, imported
        self._stateful = stateful
        self._skips, self._since, self._seconds = skips, since, seconds
        self._first = since is None
        self.iterator: TrainingIterator | None = None
        self.callback_list: Any = None
        self.progress = Progress(0, 0, 0) if imported is None else imported.progress
        self._arguments: Mapping[str, Any] = {}
        self._inputs: DataInputs | None = None
        self._facts: RunFingerprint | None = None
        self._makeup: Makeup | None = None
        self._state: FitState | None = None
        self._attempt: Attempt | None = None
        self._last_logs: dict[str, float] | None = None

    @property
    def inputs(self) -> DataInputs:
        """The data, once Keras is about to make its input."""
        assert self._inputs is not None
        return self._inputs

    @property
    def state(self) -> FitState:
        """All that makes a checkpoint, once training begins."""
        assert self._state is not None
        return self._state

    @property
    def attempt(self) -> Attempt:
        """The attempt that this drives, once training begins."""
        assert self._attempt is not None
        return self._attempt

    # Called by the hook, in the order of a fit. ------------------------------------

    def prepare(self, arguments: Mapping[str, Any]) -> None:
        """Keras is about to make the training input: local variables of its ``fit``."""
        self._arguments = arguments
        self.session.say.set_verbose(arguments["verbose"])
        resumption = self._resumption
        self._inputs = DataInputs(
            replicas.strategy_of(self.model),
            get_backend(),
            options=self.session.options.data,
            arguments=arguments,
            positions=Positions() if resumption is None else resumption.positions(),
            replaying=self.replaying,
            share=ShardedData(self.parallel, self.session.group),
        )

    def begin(self, iterator: TrainingIterator) -> None:
        """Keras made the training input."""
        self.iterator = iterator
        self.inputs.begin(iterator)

    def before_train_begin(self) -> None:
        """No callback was told anything yet: refuse a checkpoint of another run.

        Later would be too late: ``CSVLogger`` empties its file when training begins.
        """
        assert self.iterator is not None
        data = self.iterator.data_adapter.fingerprint()
        self.inputs.share.require_same(data)
        # Not before: a model's jit_compile is settled when Keras makes its function.
        makeup = self._since.makeup if self._since else Makeup(self.model)
        facts = RunFingerprint(self.model, data, self._arguments, get_backend())
        facts.current()  # on JAX the optimizer cannot tell while it trains
        self._facts, self._makeup = facts, makeup
        if self._resumption is not None:
            run = self._resumption.run
            callbacks = CallbackStates(self.callback_list.callbacks)
            others = callbacks.differences(run.callbacks)
            others += self._stateful.differences(run.stateful)
            self._resumption.check(self.model, facts, makeup, others)

    def on_train_begin(self) -> None:
        """Every callback was told that training begins: resume, or begin anew."""
        assert self._facts is not None
        assert self._makeup is not None
        since = self._since.callbacks if self._since else None
        callbacks = CallbackStates(
            self.callback_list.callbacks, attempts=self.session.attempts, since=since
        )
        self._since = None
        self._state = FitState(
            self.model,
            get_backend(),
            callbacks,
            self._stateful,
            facts=self._facts,
            makeup=self._makeup,
            losses=self.losses,
            part=self.session.part,
        )
        self._attempt = Attempt(
            self.session,
            self._state,
            self.inputs,
            losses=self.losses,
            settle=partial(dispatch.settle, self.callback_list),
        )
        shared = self._facts.of_all_processes()
        self.parallel.begin(self.model, self.session.group, shared)
        if self._resumption is not None:
            self._resume(self._resumption)
            return
        callbacks.begin_anew()
        self._tell(self._imported, self._seconds)
        self.session.stop_if_asked()

    def _resume(self, resumption: Resumption) -> None:
        """Go back to a checkpoint: now, or at its batch."""
        began = time.monotonic()
        # Not before: a callback may freeze layers now, and the optimizer has to know.
        resumption.build(self.model, self.iterator, self.parallel)
        self.state.retracing.expect(resumption.run.traces)
        progress = self.progress = resumption.progress
        epochs = self._arguments["epochs"]
        over = resumption.is_over(epochs)
        # What `fit` reads next, in place of its argument; ``run`` takes it back.
        self.model._initial_epoch = (
            max(epochs, progress.epoch) if over else progress.epoch
        )
        self._last_logs = resumption.logs()
        self.inputs.resume(progress.batch)
        if progress.batch and not over:  # the rest is restored just before the batch
            resumption.restore_callbacks(self.state)
        else:
            self.restore_in_epoch()
        seconds = self._seconds + time.monotonic() - began
        self._tell(resumption.checkpoint, seconds, over=over)
        if not over:
            self.session.stop_if_asked()

    def _tell(
        self, resumed: Checkpoint | None, seconds: float, *, over: bool = False
    ) -> None:
        self.attempt.begin(resumed, seconds, first=self._first, over=over)
        options, group = self.session.options, self.session.group
        if self._first and group.index == 0 and options.resume == "never":
            rollback.forget(options.store.directory)

    def on_epoch_begin(self, epoch: int) -> None:
        if epoch != self.progress.epoch:  # the first one may be initial_epoch
            self.progress = Progress(self.progress.step, epoch, 0)
        self.losses.begin_epoch()

    def on_train_batch_end(self, logs: Mapping[str, Any] | None) -> None:
        assert self.iterator is not None
        first = self.progress.step - self.progress.batch
        batches = self.iterator.last_batches()
        self.losses.note(first + batches[-1], len(batches), logs)

    def leaves_out(self, begin: int, end: int, length: int | None) -> bool:
        """Whether the batches from ``begin`` to ``end`` of this epoch are left out."""
        if not self._skips:  # asked before every batch
            return False
        first = self.progress.step - self.progress.batch
        return left_out(self._skips, first, begin, end, length)

    def restore_in_epoch(self) -> None:
        """Just before the first batch of a resumed epoch."""
        resumption, self._resumption = self._resumption, None
        assert resumption is not None
        resumption.restore(self.state, self.inputs.drawn_ahead)

    def between_batches(
        self, batch: int, *, next_left_out: bool, certain: bool
    ) -> None:
        """Batch ``batch - 1`` of this epoch is trained, ``batch`` is not begun.

        Args:
            batch: Number of the next batch in the epoch.
            next_left_out: Whether that batch is one to leave out.
            certain: Whether it is sure to come.
        """
        self.attempt.next_batch_is_there()
        step = self.progress.step - self.progress.batch + batch
        self.progress = Progress(step, self.progress.epoch, batch)
        self.attempt.trained(self.progress)
        if not next_left_out:  # resumed with nothing left to train, Keras has no logs
            logs = self._last_logs
            self.attempt.between_batches(self.progress, logs, certain=certain)

    def validating(self) -> None:
        """A batch is about to be validated; there is no snapshot before it is over."""
        self.session.watch.beat("validating")
        self.session.watch.stop_unless_time(self.saving.slowest)

    def replaying(self) -> None:
        """A batch was drawn again on the way to a position."""
        self.session.watch.beat("replaying")
        self.session.stop_if_asked()

    def replayed(self, seconds: float) -> None:
        """The data is where it was."""
        self.session.replayed(self.progress, seconds)

    def all_trained(self) -> None:
        """All batches of the epoch are trained: metrics and validation come next."""
        self.attempt.all_trained(self._end_of_epoch())

    def before_epoch_end(self) -> None:
        """All batches of the epoch are trained; no callback was told of its end."""
        self.losses.check(all_of_them=True)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None) -> None:
        """Every callback was told that the epoch ended."""
        self.progress = Progress(self._end_of_epoch().step, epoch + 1, 0)
        self._last_logs = monitored(logs)
        self.attempt.trained(self.progress)
        finished = self.model.stop_training or epoch + 1 >= self._arguments["epochs"]
        self.attempt.at_epoch_end(
            self.progress, self._last_logs, finished=bool(finished)
        )

    def final_logs(self, logs: Any) -> Any:
        """What ``on_train_end`` gets; in a run that was over, what it got then."""
        return logs or self._last_logs

    def _end_of_epoch(self) -> Progress:
        assert self.iterator is not None
        batches = self.iterator.batches_trained()
        first = self.progress.step - self.progress.batch
        return Progress(first + batches, self.progress.epoch, batches)
