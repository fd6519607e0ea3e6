"""One process's attempt at a fit: what happens each time Keras's loop gives us control.

The hook and the iterators call in from there, in the order of a fit. Here a checkpoint
is compared and restored, all or nothing, and progress is counted.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol

import keras

from resilient.convert.start import Started, StartFrom
from resilient.data.inputs import DataInputs, TrainingInput
from resilient.keras_internals import BACKEND, names
from resilient.objects.callbacks.capture import CallbackStates, monitored
from resilient.objects.restore import plan as plan_restore
from resilient.objects.training_setup import TrainingSetup
from resilient.objects.tree import Scope, Tree
from resilient.policies.keep import MonitoredMetrics
from resilient.progress import Progress
from resilient.saving.record import SavedState
from resilient.saving.run_json import FitRun
from resilient.serialization.json_values import decode
from resilient.serialization.state_dict import StatefulObjects
from resilient.state import variables
from resilient.state.build import (
    build_early,
    build_optimizer,
    has_keras_step,
    is_built,
)
from resilient.state.fingerprint import RunFingerprint
from resilient.storage.checkpoint import Checkpoint
from resilient.training.boundaries import Boundaries
from resilient.training.divergence import rollback
from resilient.training.divergence.loss_watch import LossWatch
from resilient.training.fit.state import FitState
from resilient.training.options import Rollback
from resilient.training.resume import Resume
from resilient.training.session import Session
from resilient.training.under_way import check_finished


@dataclass(frozen=True)
class FitPlan:
    """A fit that is about to run.

    Attributes:
        session: The processes, the events and the saves.
        model: The compiled model.
        fit: The model's ``fit``: Keras's, or the user's override.
        stateful: The user's own objects.
        on_nan: What to do when the loss is bad.
        loss_spike: See ``divergence.LossWatch``.
        start_from: The weights to start with if it does not resume.
    """

    session: Session
    model: keras.Model
    fit: Callable[..., keras.callbacks.History]
    stateful: StatefulObjects
    on_nan: Literal["ignore", "stop"] | Rollback
    loss_spike: float | None
    start_from: StartFrom | None

    @property
    def explicit(self) -> bool:
        """Whether the script calls ``resilient.fit`` itself, not ``enabled``."""
        return bool(self.fit == self.model.fit)


@dataclass
class Origin:
    """Where a fit begins.

    Attributes:
        seconds: How long it took to find that.
        found: The checkpoint of a fit, until it is compared.
        imported: The checkpoint of an import, whose weights the model has by now.
        started: The weights of another run that the model has by now.
        since: The state of the attempt in this process that a rollback undoes.
    """

    seconds: float
    found: tuple[Checkpoint, SavedState[FitRun]] | None = None
    imported: Checkpoint | None = None
    started: Started | None = None
    since: FitState | None = None

    @property
    def progress(self) -> Progress:
        """Where the model is by now."""
        return self.imported.progress if self.imported else Progress(0, 0, 0)


class EpochInput(TrainingInput, Protocol):
    """Keras's iterator over the epochs of the training data, with a position.

    Attributes:
        given: The data as it was given to ``fit``.
        inputs: All data of this fit.
    """

    given: Any
    inputs: DataInputs

    def last_batches(self) -> range:
        """Numbers of the batches trained in the last step (steps_per_execution)."""

    def batches_trained(self) -> int:
        """Batches trained in the epoch that just ended."""


class FitAttempt:
    """Follows one ``fit`` of one model. It begins before any callback is called.

    Later would be too late to refuse a checkpoint: ``CSVLogger`` empties its file when
    training begins.

    Args:
        plan: What the user asked for.
        origin: Where it begins.
        iterator: The training input.
        callbacks: Keras's list of callbacks.

    Attributes:
        model: The model.
        progress: Where training is.
        state: Everything that goes into a checkpoint.
        losses: Checks the loss of each batch.
        skips: The batches that rollbacks left out.
    """

    def __init__(
        self,
        plan: FitPlan,
        origin: Origin,
        iterator: EpochInput,
        callbacks: Any,
    ) -> None:
        session = self.session = plan.session
        self._plan, self._origin, self._iterator = plan, origin, iterator
        self.model, self.inputs = plan.model, iterator.inputs
        self._arguments = self.inputs.arguments
        self._first, self._seconds = origin.since is None, origin.seconds
        self.losses = LossWatch(
            plan.loss_spike, active=plan.on_nan != "ignore", group=session.group
        )
        # A run that starts over forgets its rollbacks.
        anew = session.resume == "never" and self._first
        directory = session.options.store.directory
        self.skips = rollback.Skipped([] if anew else rollback.read(directory))
        self.progress = origin.progress
        self._facts, self.state = self._state_of(callbacks)
        self._boundaries = Boundaries(
            session,
            self.state,
            self.inputs,
            losses=self.losses,
            settle=partial(names.wait_for_calls, callbacks),
        )
        self._last_logs: dict[str, float] | None = None
        self._first_step = 0  # of this epoch
        self._resume = None if origin.found is None else self._checked(*origin.found)
        origin.found = origin.since = None  # frees memory

    @property
    def _validates(self) -> bool:
        return self._arguments["validation_data"] is not None

    def _state_of(self, callbacks: Any) -> tuple[RunFingerprint, FitState]:
        model, session, since = self.model, self.session, self._origin.since
        data = self._iterator.data_adapter.fingerprint()
        self.inputs.share.require_same(data)
        # Not earlier: Keras settles a model's jit_compile when it makes its function.
        setup = since.setup if since else TrainingSetup(model)
        facts = RunFingerprint(model, data, self._arguments, session.backend)
        facts.current()  # on JAX the optimizer cannot tell while it trains
        mine = has_keras_step(model) and is_built(model)
        if BACKEND == "tensorflow" and mine:  # others have; own steps may train less
            build_optimizer(model)
        states = CallbackStates(
            callbacks.callbacks,
            model,
            attempts=session.attempts,
            since=since.callbacks if since else None,
            # Data has a position of its own; arrays have not.
            apart=[] if self.inputs.only_arrays else [self._iterator.given],
        )
        return facts, FitState(
            model,
            session.backend,
            session.part,
            callbacks=states,
            stateful=self._plan.stateful,
            facts=facts,
            setup=setup,
            losses=self.losses,
        )

    def _checked(
        self, checkpoint: Checkpoint, saved: SavedState[FitRun]
    ) -> Resume[FitRun]:
        """The checkpoint, if it is of this run."""
        options, epochs = self.session.options, self._arguments["epochs"]
        # A rollback goes back within this run: nothing else has changed since.
        allow = options.allow if self._first else options.allow & {"backend"}
        resume = Resume(checkpoint, saved, allow)
        resume.check(self.state.parts(resume, self.inputs))
        self._last_logs = decode(saved.run.epoch_logs, {})
        monitored_metrics = MonitoredMetrics(options.keep.monitors)
        unknown = monitored_metrics.error(self._last_logs, validates=self._validates)
        if unknown is not None:
            raise unknown
        if self._plan.explicit and self._is_over(resume, epochs):
            insists = options.resume == "must" or "learning_rate" in options.allow
            rates = {} if insists else self.state.other_rates(resume)
            check_finished(options.store.directory, rates)
        return resume

    def _is_over(self, resume: Resume[FitRun], epochs: int) -> bool:
        return resume.run.stop_training or resume.progress.epoch >= epochs

    # Called by the hook, in the order of a fit. ------------------------------------

    def begin(self) -> None:
        """All callbacks have seen ``on_train_begin``: resume, or start from scratch."""
        self.state.callbacks.learn()
        session, origin = self.session, self._origin
        shared = self._facts.of_all_processes()
        session.parallel.begin(self.model, session.group, shared)
        if self._resume is not None:
            self._go_to(self._resume)
            return
        self.state.callbacks.begin_anew()
        self._begun(origin.imported)
        if origin.started is not None:
            session.events.emit("started from", **origin.started.to_json())
            session.say(str(origin.started))
        elsewhere = origin.imported is not None or self.progress.step
        if isinstance(self._plan.on_nan, Rollback) and not elsewhere:
            self._save_start()

    def _go_to(self, resume: Resume[FitRun]) -> None:
        """Return to a checkpoint: now, or at its batch."""
        began = time.monotonic()
        # Not earlier: a callback may freeze layers now, and the optimizer has to know.
        self.state.build(resume, self._iterator, self.session.parallel)
        same = not (resume.moved or resume.saved.saver)
        self.state.retracing.expect(resume.run.traces if same else {})
        progress = self.progress = resume.progress
        epochs = self._arguments["epochs"]
        over = self._is_over(resume, epochs)
        # What `fit` reads next, in place of its argument; ``run`` resets it.
        self.model._initial_epoch = (
            max(epochs, progress.epoch) if over else progress.epoch
        )
        position, *rest = self.state.parts(resume, self.inputs)
        resume.restore([position])
        if progress.batch and not over:  # the rest is restored right before the batch;
            # `on_epoch_begin` of callbacks may rely on their own state.
            self.state.restore_callbacks(resume, last=False)
        else:
            self._resume = None
            resume.restore(rest)
        self._seconds += time.monotonic() - began
        self.session.alike = not resume.changes.found
        self._begun(resume.checkpoint, over=over)

    def _begun(self, resumed: Checkpoint | None, *, over: bool = False) -> None:
        first, seconds = self._first, self._seconds
        self._boundaries.begin(self.progress, resumed, seconds, first=first, over=over)
        if not over:
            self.session.stop_if_asked()

    def _save_start(self) -> None:
        """Save before the first batch, where a rollback may return to.

        Only if all weights exist by then: a restart would create the others anew.
        """
        model, inputs = self.model, self.inputs
        # Building calls the model's own code, which may count its calls.
        layers = model._flatten_layers() if is_built(model) else ()
        own = variables.ids(variables.leaves(model))
        named = {f"layer {i}": layer for i, layer in enumerate(layers)}
        counts = Tree({}, named, Scope(own=lambda: own))
        build_early(model, self._iterator, inputs.backend, inputs.drawn_ahead)
        plan_restore(counts, {}, {})()
        if is_built(model):
            self._boundaries.save_start(self.progress)

    def on_epoch_begin(self, epoch: int) -> None:
        """An epoch begins; callbacks have not been called."""
        if epoch != self.progress.epoch:  # the first one may be initial_epoch
            self.progress = Progress(self.progress.step, epoch, 0)
        self.losses.begin_epoch()
        self._first_step = self.progress.step - self.progress.batch

    def logged(self, batch: int, logs: Mapping[str, Any] | None) -> None:
        """What Keras logs after a batch, as floats; maybe in a thread of Keras's."""
        self.session.witness.logged(self._first_step + batch + 1, logs or {})

    def on_train_batch_end(self, logs: Mapping[str, Any] | None) -> None:
        """A batch was trained, and its loss is to be checked."""
        batches = self._iterator.last_batches()
        self.losses.note(self._first_step + batches[-1], len(batches), logs)

    def all_trained(self) -> None:
        """All batches of the epoch are trained: metrics and validation come next."""
        self._boundaries.all_trained(self._end_of_epoch())

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None) -> None:
        """Every callback has seen ``on_epoch_end``."""
        self.progress = Progress(self._end_of_epoch().step, epoch + 1, 0)
        self._last_logs = monitored(logs)
        self._boundaries.trained(self.progress)
        finished = self.model.stop_training or epoch + 1 >= self._arguments["epochs"]
        self._boundaries.at_epoch_end(
            self.progress,
            self._last_logs,
            finished=bool(finished),
            validates=self._validates,
        )

    def final_logs(self, logs: Any) -> Any:
        """What ``on_train_end`` gets; in a finished run, what it got then."""
        return logs or self._last_logs

    def _end_of_epoch(self) -> Progress:
        batches = self._iterator.batches_trained()
        first = self.progress.step - self.progress.batch
        return Progress(first + batches, self.progress.epoch, batches)

    # Called by the iterators. ----------------------------------------------------

    def before_batch(
        self, batch: int, *, left_out: bool, certain: Callable[[], bool]
    ) -> None:
        """Batch ``batch - 1`` of this epoch is trained, ``batch`` has not begun.

        The first batch of a resumed epoch is trained with the checkpoint's state.

        Args:
            batch: Number of the next batch in the epoch.
            left_out: Whether that batch will be skipped.
            certain: Whether it certainly exists.
        """
        resume, self._resume = self._resume, None
        if resume is not None:
            resume.restore(self.state.parts(resume, self.inputs)[1:])
        elif batch:
            self._boundaries.next_batch_is_there()
            step, epoch, before = self.progress
            self.progress = progress = Progress(step - before + batch, epoch, batch)
            # After a resume with nothing left to train, Keras has no logs.
            self._boundaries.between_batches(
                progress, self._last_logs, certain=certain, save=not left_out
            )

    def leaves_out(self, begin: int, end: int, length: int | None) -> bool:
        """Whether the batches from ``begin`` to ``end`` of this epoch are skipped."""
        first = self.progress.step - self.progress.batch
        return self.skips.leave_out(first, begin, end, length)

    def replay(self) -> AbstractContextManager[None]:
        """Inside, the data returns to its position."""
        return self.session.replay(self.inputs, self.progress)

    def validating(self) -> None:
        """A batch is about to be validated; no snapshot is taken during validation."""
        self.session.watch.beat("validating")
        self.session.watch.stop_unless_time(self.session.saving.slowest)
