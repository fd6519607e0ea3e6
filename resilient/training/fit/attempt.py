"""One process's life on a run: what happens when ``fit`` gives us control.

The hook calls in from Keras's loop. Here a checkpoint is checked and restored (all of
it, or none), the run's progress is counted, and snapshots are taken when due. How to
get control, how to copy tensors and how to commit are the business of others.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import keras

from resilient.backends.base import Backend, Part
from resilient.data import DataOptions
from resilient.data.inputs import DataInputs, TrainingInput
from resilient.data.shard import ShardedData
from resilient.distributed.group import Group
from resilient.distributed.strategies.base import ParallelStrategy
from resilient.keras_internals import dispatch
from resilient.objects.callbacks.capture import CallbackStates, monitored
from resilient.objects.makeup.makeup import Makeup
from resilient.preemption.watch import Watch
from resilient.progress import Progress
from resilient.saving import record
from resilient.saving.checkpointer import Checkpointer
from resilient.saving.run_json import FitRun
from resilient.serialization.json_values import decode
from resilient.serialization.position import Positions
from resilient.serialization.state_dict import StatefulObjects
from resilient.state import replicas
from resilient.state.build import ensure_built
from resilient.state.fingerprint import RunFingerprint
from resilient.storage.checkpoint import Checkpoint
from resilient.telemetry.console import Notifier
from resilient.telemetry.events import Events
from resilient.training.boundaries import StepBoundary
from resilient.training.divergence.loss_watch import LossWatch
from resilient.training.divergence.rollback import Skip, left_out
from resilient.training.fit.compatibility import CompatibilityCheck
from resilient.training.fit.run_state import FitState


class EpochInput(TrainingInput, Protocol):
    """What Keras iterates for training; ``iterators`` makes it."""

    def last_batches(self) -> range:
        """Numbers of the batches that were trained last, all at once."""

    def batches_trained(self) -> int:
        """Batches trained in the epoch that just ended."""

    def let_go(self) -> None:
        """Drop what batches are drawn from, which fit is done with."""


class FitAttempt:
    """Follows one ``fit`` of one model.

    Args:
        model: The compiled model.
        backend: Its backend's adapter.
        found: A verified checkpoint to resume from, and what is in it; None starts a
            new run.
        saving: Says when a checkpoint is due, and commits it.
        parallel: How the processes train one model.
        group: These processes.
        stateful: The user's own objects, by name.
        data: What the user wants of the data.
        attempts: Host, pid and start of every process that worked on this run.
        losses: Looks at the loss of each batch.
        skips: The rollbacks of this run: batches that it leaves out.
        since: Of the attempt in this process that a rollback undoes.
        watch: Told that training goes on; knows whether it was asked to stop.
        events: Told of what happens.
        say: Tells the user.
        on_begin: Told when nothing stands in the way of training any more; with the
            checkpoint that was restored (or is about to be at its batch), whether the
            run is over, and the seconds that restoring took.
    """

    def __init__(
        self,
        model: keras.Model,
        *,
        backend: Backend,
        found: tuple[Checkpoint, record.SavedState[FitRun]] | None,
        saving: Checkpointer,
        parallel: ParallelStrategy,
        group: Group,
        stateful: StatefulObjects,
        data: DataOptions,
        attempts: Sequence[Mapping[str, Any]],
        losses: LossWatch,
        skips: Sequence[Skip],
        since: FitState | None,
        watch: Watch,
        events: Events,
        say: Notifier,
        on_begin: Callable[[Checkpoint | None, bool, float], None],
    ) -> None:
        self.model, self.backend = model, backend
        self.iterator: EpochInput | None = None
        self.callback_list: Any = None
        self.progress = Progress(0, 0, 0)
        self._checkpoint = None if found is None else found[0]
        self._saved = None if found is None else found[1]
        self._watch, self._events, self._say = watch, events, say
        self.losses, self._skips, self._since = losses, skips, since
        self._stateful, self._data, self.saving = stateful, data, saving
        self.parallel, self._group = parallel, group
        self._attempts, self._on_begin = attempts, on_begin
        self._pending: record.SavedState[FitRun] | None = None
        self._last_logs: dict[str, float] | None = None

    # Called by the hook, in the order of a fit. ------------------------------------

    def prepare(self, arguments: Mapping[str, Any]) -> None:
        """Keras is about to make the training input: local variables of its ``fit``."""
        self._arguments = arguments
        self._say.set_verbose(arguments["verbose"])
        saved = self._saved
        self.inputs = DataInputs(
            replicas.strategy_of(self.model),
            self.backend,
            options=self._data,
            arguments=arguments,
            positions=Positions() if saved is None else saved.positions(),
            replaying=self.replaying,
            share=ShardedData(self.parallel, self._group),
        )

    def begin(self, iterator: EpochInput) -> None:
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
        self._makeup = self._since.makeup if self._since else Makeup(self.model)
        self._facts = RunFingerprint(self.model, data, self._arguments, self.backend)
        self._facts.current()  # on JAX the optimizer cannot tell while it trains
        saved = self._saved
        if saved is None or self._checkpoint is None:
            return
        callbacks = CallbackStates(self.callback_list.callbacks)
        others = callbacks.differences(saved.run.callbacks)
        others += self._stateful.differences(saved.run.stateful)
        self._comparison = CompatibilityCheck(
            self._checkpoint, saved.run, self._facts, self._makeup, self.model
        )
        self._comparison.check_before_build(others)

    def on_train_begin(self) -> None:
        """Every callback was told that training begins: resume, or begin anew."""
        assert self.iterator is not None
        since = self._since.callbacks if self._since else None
        callbacks = CallbackStates(
            self.callback_list.callbacks, attempts=self._attempts, since=since
        )
        self._since = None
        self.contents = FitState(
            self.model,
            self.backend,
            callbacks,
            self._stateful,
            facts=self._facts,
            makeup=self._makeup,
            losses=self.losses,
            part=Part(self._group.index, self._group.count, replicas.count(self.model)),
        )
        self._boundaries = StepBoundary(
            self.contents,
            self.inputs,
            losses=self.losses,
            saving=self.saving,
            watch=self._watch,
            group=self._group,
            events=self._events,
            settle=partial(dispatch.settle, self.callback_list),
        )
        self.parallel.begin(self.model, self._group, self._facts.of_all_processes())
        began = time.monotonic()
        saved, self._saved = self._saved, None
        if saved is None or self._checkpoint is None:
            callbacks.begin_anew()
            self._on_begin(None, False, 0.0)
            self._stop_if_asked()
            return
        # Not before: a callback may freeze layers now, and the optimizer has to know.
        layout = saved.run.variables
        ensure_built(self.model, self.iterator, layout, self.backend)
        self._comparison.check_after_build()
        self.parallel.warm_up(self.model, self.iterator, self.backend)
        self.contents.retracing.expect(saved.run.traces)
        self.progress = self._checkpoint.progress
        epochs, stopped = self._arguments["epochs"], saved.run.stop_training
        over = stopped or self.progress.epoch >= epochs
        # What `fit` reads next, in place of its argument; ``run`` takes it back.
        self.model._initial_epoch = (
            max(epochs, self.progress.epoch) if over else self.progress.epoch
        )
        self._last_logs = decode(saved.run.epoch_logs, {})
        self.inputs.resume(self.progress.batch)
        if self.progress.batch and not over:
            # The rest is restored just before the batch, after on_epoch_begin; but
            # on_epoch_begin may rely on what the callbacks know.
            callbacks.restore(saved.run.callbacks, saved.tensors)
            self._pending = saved
        else:
            self.contents.restore(saved, self.inputs.drawn_ahead, self._comparison)
        self._on_begin(self._checkpoint, over, time.monotonic() - began)
        self._watch.beat("starting", self.progress)
        if not over:
            self._stop_if_asked()

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
        saved, self._pending = self._pending, None
        assert saved is not None
        self.contents.restore(saved, self.inputs.drawn_ahead, self._comparison)

    def between_batches(
        self, batch: int, *, next_left_out: bool, certain: bool
    ) -> None:
        """Batch ``batch - 1`` of this epoch is trained, ``batch`` is not begun.

        Args:
            batch: Number of the next batch in the epoch.
            next_left_out: Whether that batch is one to leave out.
            certain: Whether it is sure to come.
        """
        self._boundaries.next_batch_is_there()
        step = self.progress.step - self.progress.batch + batch
        self.progress = Progress(step, self.progress.epoch, batch)
        self._boundaries.trained(self.progress)
        if not next_left_out:  # resumed with nothing left to train, Keras has no logs
            logs = self._last_logs
            self._boundaries.between_batches(self.progress, logs, certain=certain)

    def validating(self) -> None:
        """A batch is about to be validated; there is no snapshot before it is over."""
        self._watch.beat("validating")
        self._watch.stop_unless_time(self.saving.slowest)

    def replaying(self) -> None:
        """A batch was drawn again on the way to a position."""
        self._watch.beat("replaying")
        self._stop_if_asked()

    def replayed(self, seconds: float) -> None:
        """The data is where it was."""
        self._events.emit("replayed", **self.progress.to_json(), seconds=seconds)

    def all_trained(self) -> None:
        """All batches of the epoch are trained: metrics and validation come next."""
        self._boundaries.all_trained(self._end_of_epoch())

    def before_epoch_end(self) -> None:
        """All batches of the epoch are trained; no callback was told of its end."""
        self.losses.check(all_of_them=True)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None) -> None:
        """Every callback was told that the epoch ended."""
        self.progress = Progress(self._end_of_epoch().step, epoch + 1, 0)
        self._last_logs = monitored(logs)
        self._boundaries.trained(self.progress)
        logs, finished = self._last_logs, self.finished(epoch + 1)
        self._boundaries.at_epoch_end(self.progress, logs, finished=finished)

    def final_logs(self, logs: Any) -> Any:
        """What ``on_train_end`` gets; in a run that was over, what it got then."""
        return logs or self._last_logs

    def finished(self, epochs_done: int) -> bool:
        return bool(
            self.model.stop_training or epochs_done >= self._arguments["epochs"]
        )

    def _end_of_epoch(self) -> Progress:
        assert self.iterator is not None
        batches = self.iterator.batches_trained()
        first = self.progress.step - self.progress.batch
        return Progress(first + batches, self.progress.epoch, batches)

    def _stop_if_asked(self) -> None:
        """Stop where all is on the disk; several processes, at the next batch."""
        if self._group.count == 1:
            self._watch.stop_if_asked()
