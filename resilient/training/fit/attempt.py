"""One process's attempt at a fit: what happens each time Keras's loop gives us control.

The hook and the iterators call in from there, in the order of a fit. Here a checkpoint
is compared and restored, all or nothing, and progress is counted.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import keras

from resilient.keras_internals import names
from resilient.objects.callbacks.capture import monitored
from resilient.objects.restore import plan as plan_restore
from resilient.objects.tree import Scope, Tree
from resilient.policies.keep import unlogged
from resilient.progress import Progress
from resilient.saving.record import SavedState
from resilient.saving.run_json import FitRun
from resilient.serialization.json_values import decode
from resilient.state import variables
from resilient.state.build import build_early, is_built
from resilient.storage.checkpoint import Checkpoint
from resilient.training import rollback
from resilient.training.boundaries import Boundaries
from resilient.training.fit.state import FitState
from resilient.training.options import Rollback, RunOptionsOfFit
from resilient.training.resume import Resume
from resilient.training.session import Session
from resilient.training.under_way import check_finished

if TYPE_CHECKING:
    from resilient.training.fit.iterators import TrainingIterator


@dataclass
class FitPlan:
    """A fit that is about to run, and where it begins.

    Attributes:
        session: The processes, the events and the saves.
        options: What the user asked for.
        model: The compiled model.
        fit: The model's ``fit``: Keras's, or the user's override.
        seconds: How long it took to find where it begins.
        found: The checkpoint of a fit, until it is compared.
        imported: The checkpoint of an import, whose weights the model has by now.
        started: Lines that say which weights of another run the model has by now.
        since: The state of the attempt in this process that a rollback undoes.
    """

    session: Session
    options: RunOptionsOfFit
    model: keras.Model
    fit: Callable[..., keras.callbacks.History]
    seconds: float = 0.0
    found: tuple[Checkpoint, SavedState[FitRun]] | None = None
    imported: Checkpoint | None = None
    started: list[str] = field(default_factory=list)
    since: FitState | None = None

    @property
    def explicit(self) -> bool:
        """Whether the script calls ``resilient.fit`` itself, not ``enabled``."""
        return bool(self.fit == self.model.fit)


class FitAttempt:
    """Follows one ``fit`` of one model. It begins before any callback is called.

    Later would be too late to refuse a checkpoint: ``CSVLogger`` empties its file when
    training begins.

    Args:
        plan: The fit.
        iterator: The training input.
        callbacks: Keras's list of callbacks.

    Attributes:
        session: The processes, the events and the saves.
        iterator: The training input.
        progress: Where training is.
        state: Everything that goes into a checkpoint.
        losses: Checks the loss of each batch.
    """

    def __init__(
        self, plan: FitPlan, iterator: "TrainingIterator", callbacks: Any
    ) -> None:
        session, options = plan.session, plan.options
        self._plan, self.session, self.iterator = plan, session, iterator
        self._epochs: int = iterator.inputs.arguments["epochs"]
        self._validates = iterator.inputs.arguments["validation_data"] is not None
        self._first = plan.since is None
        self.losses = rollback.LossWatch(
            options.loss_spike, active=options.on_nan != "ignore", group=session.group
        )
        # A run that starts over forgets its rollbacks.
        anew = session.resume == "never" and self._first
        self._skips = [] if anew else rollback.read(options.store.directory)
        self.progress = plan.imported.progress if plan.imported else Progress(0, 0, 0)
        self.state = FitState(plan, iterator, callbacks.callbacks, self.losses)
        self._boundaries = Boundaries(
            session,
            self.state,
            iterator.inputs,
            losses=self.losses,
            settle=partial(names.wait_for_calls, callbacks),
        )
        self._first_step = 0  # of this epoch
        # Why nothing is left to train, in words, if so.
        self._over: str | None = None
        self._resume = None if plan.found is None else self._checked(*plan.found)
        plan.found = plan.since = None  # frees memory

    def _checked(
        self, checkpoint: Checkpoint, saved: SavedState[FitRun]
    ) -> Resume[FitRun]:
        """The checkpoint, if it is of this run."""
        options = self._plan.options
        # A rollback goes back within this run: nothing else has changed since.
        again = options.allow & {"backend", "stopped"}
        allow = options.allow if self._first else again
        resume = Resume(checkpoint, saved, allow)
        resume.check(self.state.parts(resume))
        logs = self.state.logs = decode(saved.run.epoch_logs, {})
        missing = self._boundaries.unlogged
        unknown = unlogged(missing, logs, validates=self._validates)
        if unknown is not None:
            raise unknown
        if resume.progress.epoch >= self._epochs:
            self._over = ""
        elif saved.run.stop_training:
            what = "a callback (model.stop_training)"
            self._over = resume.why_stopped(what, self._epochs) or None
        if self._plan.explicit and self._over is not None:
            insists = options.resume == "must" or "learning_rate" in options.allow
            rates = {} if insists else self.state.other_rates(resume)
            check_finished(options.store.directory, rates)
        return resume

    # Called by the hook, in the order of a fit. ------------------------------------

    def begin(self) -> None:
        """All callbacks have seen ``on_train_begin``: resume, or start from scratch."""
        session, plan = self.session, self._plan
        state, resume = self.state, self._resume
        state.callbacks.learn()
        facts = state.facts.of_all_processes()
        session.parallel.begin(plan.model, session.group, facts)
        began, resumed = time.monotonic(), plan.imported
        if resume is None:
            state.callbacks.begin_anew()
        else:
            resumed = resume.checkpoint
            self._go_to(resume)
        self._boundaries.begin(
            self.progress,
            resumed,
            plan.seconds + time.monotonic() - began,
            first=self._first,
            over=self._over,
        )
        if self._over is None:
            session.stop_if_asked()
        for line in plan.started:
            session.say(line)
        if resumed is None and isinstance(plan.options.on_nan, Rollback):
            self._save_start()

    def _go_to(self, resume: Resume[FitRun]) -> None:
        """Return to a checkpoint: now, or at its batch."""
        state, run, over = self.state, resume.run, self._over is not None
        # Not earlier: a callback may freeze layers now, and the optimizer has to know.
        state.build(resume, self.session.parallel)
        same = not (resume.moved or resume.saved.saver)
        state.retracing.expect(run.traces if same else {})
        progress = self.progress = resume.progress
        # What `fit` reads next, in place of its argument; ``run`` resets it.
        self._plan.model._initial_epoch = (
            max(self._epochs, progress.epoch) if over else progress.epoch
        )
        position, *rest = state.parts(resume)
        resume.restore([position])
        if progress.batch and not over:  # the rest is restored right before the batch;
            # `on_epoch_begin` of callbacks may rely on their own state.
            tensors = resume.saved.tensors
            state.callbacks.restore(run.callbacks, tensors, run.attributes, last=False)
        else:
            self._resume = None
            resume.restore(rest)
        self.session.alike = not resume.changes.found

    def _save_start(self) -> None:
        """Save before the first batch, where a rollback may return to.

        Only if all weights exist by then: a restart would create the others anew.
        """
        model, inputs = self._plan.model, self.iterator.inputs
        # Building calls the model's own code, which may count its calls.
        layers = model._flatten_layers() if is_built(model) else ()
        own = variables.ids(variables.leaves(model))
        named = {f"layer {i}": layer for i, layer in enumerate(layers)}
        counts = Tree({}, named, Scope(own=lambda: own))
        build_early(model, self.iterator, inputs.backend, inputs.drawn_ahead)
        plan_restore(counts, {}, {})()
        if is_built(model):
            self.session.request_save()
            # As at the end of a previous epoch.
            self._boundaries.at_epoch_end(self.progress, None, finished=False)

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
        batches = self.iterator.last_batches()
        self.losses.note(self._first_step + batches[-1], len(batches), logs)

    def all_trained(self) -> None:
        """All batches of the epoch are trained: metrics and validation come next."""
        here = self._after(self.iterator.batches_trained())
        self._boundaries.consensus.out_of_batches(here)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None) -> None:
        """Every callback has seen ``on_epoch_end``."""
        step = self._after(self.iterator.batches_trained()).step
        self.progress = Progress(step, epoch + 1, 0)
        self.state.logs = monitored(logs)
        self._boundaries.trained(self.progress)
        stopped = self._plan.model.stop_training
        self._boundaries.at_epoch_end(
            self.progress,
            self.state.logs,
            finished=bool(stopped or epoch + 1 >= self._epochs),
            validates=self._validates,
        )

    def _after(self, batches: int) -> Progress:
        """The progress after so many batches of this epoch."""
        return Progress(self._first_step + batches, self.progress.epoch, batches)

    # Called by the iterator. ----------------------------------------------------

    def before_batch(self, batch: int, last: int, certain: Callable[[], bool]) -> bool:
        """Batch ``batch - 1`` of this epoch is trained, ``batch`` has not begun.

        The first batch of a resumed epoch is trained with the checkpoint's state.

        Args:
            batch: Number of the next batch in the epoch.
            last: Number of the last one that is trained in one step with it.
            certain: Whether it certainly exists.

        Returns:
            Whether the batches from ``batch`` to ``last`` are skipped.
        """
        left_out = rollback.leave_out(
            self._skips, self._first_step, batch, last, self.iterator.num_batches
        )
        resume, self._resume = self._resume, None
        if resume is not None:
            resume.restore(self.state.parts(resume)[1:])
        elif batch:
            self.progress = self._after(batch)
            # After a resume with nothing left to train, Keras has no logs.
            self._boundaries.between_batches(
                self.progress, certain=certain, save=not left_out
            )
        return left_out
