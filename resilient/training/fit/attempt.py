"""Drives an attempt from Keras's ``fit``: what happens each time we get control.

The hook and the iterators call in from Keras's loop, in the order of a fit. Here a
checkpoint is checked and restored, all or nothing, and progress is counted.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from resilient.convert.start import Started, start
from resilient.data.inputs import DataInputs
from resilient.keras_internals import BACKEND, names
from resilient.objects.callbacks.capture import CallbackStates, monitored
from resilient.objects.training_setup import TrainingSetup
from resilient.policies.monitored import MonitoredMetrics
from resilient.progress import Progress
from resilient.saving.record import Loaded, SavedState, is_of, of_kind
from resilient.saving.run_json import FitRun, ImportRun
from resilient.state import weights
from resilient.state.build import build_optimizer, has_keras_step, is_built
from resilient.state.fingerprint import RunFingerprint
from resilient.storage.checkpoint import Checkpoint
from resilient.training.attempt import Attempt
from resilient.training.divergence import rollback
from resilient.training.divergence.loss_watch import LossWatch
from resilient.training.fit import finished
from resilient.training.fit.plan import FitPlan
from resilient.training.fit.resumption import EpochInput, Resumption
from resilient.training.fit.run_state import FitState
from resilient.training.fit.way_back import save_start


class FitAttempt:
    """Follows one ``fit`` of one model.

    Args:
        plan: What the user asked for.
        found: The checkpoint to resume from; None starts a new run.
        seconds: How long reading it took.
        since: State of the attempt in this process that a rollback undoes.
    """

    def __init__(
        self,
        plan: FitPlan,
        found: Loaded | None,
        seconds: float,
        since: FitState | None = None,
    ) -> None:
        session = self.session = plan.session
        self._plan, self.model, self.parallel = plan, plan.model, session.parallel
        self._since, self._seconds, self._first = since, seconds, since is None
        self.losses = LossWatch(
            plan.loss_spike, active=plan.on_nan != "ignore", group=session.group
        )
        # A run that starts over forgets its rollbacks.
        anew = session.resume == "never" and self._first
        directory = session.options.store.directory
        self.skips = rollback.Skipped([] if anew else rollback.read(directory))
        self.progress = Progress(0, 0, 0)
        self._imported: Checkpoint | None = None
        self._found: tuple[Checkpoint, SavedState[FitRun]] | None = None
        self._started: Started | None = None
        if found is not None:
            self._begin_from(found)
        else:
            self._started = next(iter(start(plan.starts, session.group)), None)
        self.iterator: EpochInput | None = None
        self.callback_list: Any = None
        self.logs: Any = None  # a callback that gets them as floats
        self._arguments: Mapping[str, Any] = {}
        self._inputs: DataInputs | None = None
        self._known: tuple[RunFingerprint, TrainingSetup] | None = None
        self._callbacks: CallbackStates | None = None
        self._resumption: Resumption | None = None
        self._state: FitState | None = None
        self._attempt: Attempt | None = None
        self._last_logs: dict[str, float] | None = None
        self._first_step = 0  # of this epoch

    @property
    def inputs(self) -> DataInputs:
        """The data, once Keras is about to create its input."""
        assert self._inputs is not None
        return self._inputs

    @property
    def _validates(self) -> bool:
        return self._arguments["validation_data"] is not None

    @property
    def state(self) -> FitState:
        """Everything that goes into a checkpoint, once training begins."""
        assert self._state is not None
        return self._state

    @property
    def attempt(self) -> Attempt:
        """The attempt driven from here, once training begins."""
        assert self._attempt is not None
        return self._attempt

    # Called by the hook, in the order of a fit. ------------------------------------

    def prepare(self, arguments: Mapping[str, Any]) -> None:
        """Keras is about to create the training input; takes its ``fit``'s locals."""
        self._arguments = arguments
        self.session.say.set_verbose(arguments["verbose"])
        positions = None if self._found is None else self._found[1].positions()
        self._inputs = self.session.inputs(arguments, positions)

    def begin(self, iterator: EpochInput) -> None:
        """Keras created the training input."""
        self.iterator = iterator
        self.inputs.begin(iterator)

    def before_train_begin(self) -> None:
        """No callback has been called yet: refuse a checkpoint of a different run.

        Later would be too late: ``CSVLogger`` empties its file when training begins.
        """
        assert self.iterator is not None
        data = self.iterator.data_adapter.fingerprint()
        self.inputs.share.require_same(data)
        # Not earlier: Keras settles a model's jit_compile when it makes its function.
        setup = self._since.setup if self._since else TrainingSetup(self.model)
        options, backend = self.session.options, self.session.backend
        facts = RunFingerprint(self.model, data, self._arguments, backend)
        facts.current()  # on JAX the optimizer cannot tell while it trains
        self._known = facts, setup
        mine = has_keras_step(self.model) and is_built(self.model)
        if BACKEND == "tensorflow" and mine:  # others have; own steps may train less
            build_optimizer(self.model)
        self._callbacks = CallbackStates(
            self.callback_list.callbacks,
            self.model,
            attempts=self.session.attempts,
            since=self._since.callbacks if self._since else None,
            # Data has a position of its own; arrays have not.
            apart=[] if self.inputs.only_arrays else [self.iterator.given],
        )
        if self._found is not None:
            # A rollback goes back within this run: nothing else has changed since.
            allow = options.allow if self._first else options.allow & {"backend"}
            resumption = Resumption(self.model, *self._found, facts, setup, allow=allow)
            self._resumption, self._found = resumption, None
            resumption.check(self._callbacks, self._plan.stateful)
            keep = MonitoredMetrics(options.keep.monitors)
            if unknown := keep.error(resumption.logs(), validates=self._validates):
                raise unknown
            if self._plan.explicit and resumption.is_over(self._arguments["epochs"]):
                insists = options.resume == "must" or "learning_rate" in options.allow
                rates = {} if insists else resumption.other_rates()
                finished.check(options.store.directory, rates)

    def on_train_begin(self) -> None:
        """All callbacks have seen ``on_train_begin``: resume, or start from scratch."""
        assert self._known is not None
        facts, setup = self._known
        callbacks, self._since = self._callbacks, None
        assert callbacks is not None
        callbacks.learn()
        self._state = FitState(
            self.model,
            self.session.backend,
            self.session.part,
            callbacks=callbacks,
            stateful=self._plan.stateful,
            facts=facts,
            setup=setup,
            losses=self.losses,
        )
        self._attempt = Attempt(
            self.session,
            self._state,
            self.inputs,
            losses=self.losses,
            settle=partial(names.wait_for_calls, self.callback_list),
        )
        shared = facts.of_all_processes()
        self.parallel.begin(self.model, self.session.group, shared)
        if self._resumption is not None:
            self._resume(self._resumption)
            return
        callbacks.begin_anew()
        self._begun(self._imported)
        if self._started is not None:
            self.session.events.emit("started from", **self._started.to_json())
            self.session.say(str(self._started))
        if self._imported is None:
            save_start(self, self._plan.on_nan)

    def _resume(self, resumption: Resumption) -> None:
        """Go back to a checkpoint: now, or at its batch."""
        began = time.monotonic()
        # Not earlier: a callback may freeze layers now, and the optimizer has to know.
        resumption.build(self.iterator, self.parallel, self.state.callbacks)
        self.state.retracing.expect(resumption.traces())
        progress = self.progress = resumption.progress
        epochs = self._arguments["epochs"]
        over = resumption.is_over(epochs)
        # What `fit` reads next, in place of its argument; ``run`` takes it back.
        self.model._initial_epoch = (
            max(epochs, progress.epoch) if over else progress.epoch
        )
        self._last_logs = resumption.logs()
        resumption.move(self.inputs)
        if progress.batch and not over:  # the rest is restored right before the batch;
            # `on_epoch_begin` of callbacks may rely on their own state.
            resumption.restore_callbacks(self.state.callbacks, last=False)
        else:
            self.restore_in_epoch()
        self._seconds += time.monotonic() - began
        self.session.alike = resumption.is_alike()
        self._begun(resumption.checkpoint, over=over)

    def _begun(self, resumed: Checkpoint | None, *, over: bool = False) -> None:
        first, seconds = self._first, self._seconds
        self.attempt.begin(self.progress, resumed, seconds, first=first, over=over)
        if not over:
            self.session.stop_if_asked()

    def _begin_from(self, found: Loaded) -> None:
        checkpoint, saved = found
        if not is_of(saved, ImportRun):
            self._found = of_kind(found, FitRun)
            return
        # What an import does not have starts from scratch.
        saved = saved.taken_by(weights.ready(self.model))
        run = saved.run
        weights.put(self.model, run.variables, saved.tensors, checkpoint.path)
        run.warn()
        self._imported, self.progress = checkpoint, checkpoint.progress

    def on_epoch_begin(self, epoch: int) -> None:
        if epoch != self.progress.epoch:  # the first one may be initial_epoch
            self.progress = Progress(self.progress.step, epoch, 0)
        self.losses.begin_epoch()
        self._first_step = self.progress.step - self.progress.batch

    def logged(self, batch: int, logs: Mapping[str, Any] | None) -> None:
        """What Keras logs after a batch, as floats; maybe in a thread of Keras's."""
        self.session.witness.logged(self._first_step + batch + 1, logs or {})

    def on_train_batch_end(self, logs: Mapping[str, Any] | None) -> None:
        assert self.iterator is not None
        first = self.progress.step - self.progress.batch
        batches = self.iterator.last_batches()
        self.losses.note(first + batches[-1], len(batches), logs)

    def leaves_out(self, begin: int, end: int, length: int | None) -> bool:
        """Whether the batches from ``begin`` to ``end`` of this epoch are skipped."""
        first = self.progress.step - self.progress.batch
        return self.skips.leave_out(first, begin, end, length)

    def restore_in_epoch(self) -> None:
        """Just before the first batch of a resumed epoch."""
        resumption, self._resumption = self._resumption, None
        assert resumption is not None
        self.state.restore(resumption, self.inputs.drawn_ahead)

    def between_batches(
        self, batch: int, *, next_left_out: bool, certain: Callable[[], bool]
    ) -> None:
        """Batch ``batch - 1`` of this epoch is trained, ``batch`` has not begun.

        Args:
            batch: Number of the next batch in the epoch.
            next_left_out: Whether that batch will be skipped.
            certain: Whether it certainly exists.
        """
        attempt, (step, epoch, before) = self.attempt, self.progress
        attempt.next_batch_is_there()
        self.progress = progress = Progress(step - before + batch, epoch, batch)
        # After a resume with nothing left to train, Keras has no logs.
        save, logs = not next_left_out, self._last_logs
        attempt.between_batches(progress, logs, certain=certain, save=save)

    def validating(self) -> None:
        """A batch is about to be validated; no snapshot is taken during validation."""
        self.session.watch.beat("validating")
        self.session.watch.stop_unless_time(self.session.saving.slowest)

    def replay(self) -> AbstractContextManager[None]:
        """Inside, the data returns to its position."""
        return self.session.replay(self.inputs, self.progress)

    def all_trained(self) -> None:
        """All batches of the epoch are trained: metrics and validation come next."""
        self.attempt.all_trained(self._end_of_epoch())

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None) -> None:
        """Every callback has seen ``on_epoch_end``."""
        self.progress = Progress(self._end_of_epoch().step, epoch + 1, 0)
        self._last_logs = monitored(logs)
        self.attempt.trained(self.progress)
        finished = self.model.stop_training or epoch + 1 >= self._arguments["epochs"]
        self.attempt.at_epoch_end(
            self.progress,
            self._last_logs,
            finished=bool(finished),
            validates=self._validates,
        )

    def final_logs(self, logs: Any) -> Any:
        """What ``on_train_end`` gets; in a finished run, what it got then."""
        return logs or self._last_logs

    def _end_of_epoch(self) -> Progress:
        assert self.iterator is not None
        batches = self.iterator.batches_trained()
        first = self.progress.step - self.progress.batch
        return Progress(first + batches, self.progress.epoch, batches)
