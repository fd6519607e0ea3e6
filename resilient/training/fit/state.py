"""The state of a fit: captured between two batches, compared, and restored.

A checkpoint is compared twice, before any callback is called and once everything is
built, since a model may have no variables before Keras builds it. Of what differs, the
script's value wins; except for the learning rate, where the checkpoint's wins, as part
of the optimizer's state.
"""

import logging
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from resilient.distributed.strategies.base import ParallelStrategy
from resilient.errors import CheckpointMismatchError
from resilient.keras_internals import BACKEND
from resilient.keras_internals.traces import stateful_random_operations
from resilient.objects.adapters import gradients
from resilient.objects.callbacks.capture import CallbackStates
from resilient.objects.training_setup import TrainingSetup, is_eager
from resilient.objects.tree import paths
from resilient.saving.run_json import FitRun
from resilient.serialization import JSON
from resilient.serialization.json_values import decode, encode
from resilient.serialization.schema import taking
from resilient.state import comparison, fingerprint, layouts, retracing, variables
from resilient.state.build import (
    build_optimizer,
    ensure_built,
    has_keras_step,
    is_built,
    try_a_step,
)
from resilient.state.comparison import SETTINGS, Difference, differences
from resilient.training.resume import IN_TRAINING, Restorable, Resume
from resilient.training.rollback import LossWatch
from resilient.training.state import (
    CHANGED,
    NOT_SAVED,
    OPERATIONS,
    RESET,
    RunState,
    no_garbage_collection,
)

if TYPE_CHECKING:
    from resilient.training.fit.attempt import FitPlan
    from resilient.training.fit.iterators import TrainingIterator

logger = logging.getLogger(__name__)

_RESET = RESET.format("a keras.Variable, in a callback or in `stateful`")
_CHANGED = CHANGED.format(
    "between two fits, each with its own checkpoint_dir, or before the first batch of "
    "every attempt"
)

# In ``allow``: groups of variables that may start fresh.
_FRESH = ("optimizer", "metrics")
_LATER = (SETTINGS, "metrics")  # accepted once everything is built


class FitState(RunState):
    """The state of one fit.

    Args:
        plan: The fit.
        iterator: The training input.
        callbacks: Keras's callbacks.
        losses: Watches the loss of each batch.

    Attributes:
        callbacks: The state of callbacks.
        setup: What the model trains with.
        facts: The identity of the run.
        retracing: What is still to be compiled.
        logs: Those of the last epoch that ended.
    """

    def __init__(
        self,
        plan: "FitPlan",
        iterator: "TrainingIterator",
        callbacks: Sequence[Any],
        losses: LossWatch,
    ) -> None:
        session, since = plan.session, plan.since
        model, inputs = plan.model, iterator.inputs
        super().__init__(session.backend, session.part)
        self._model, self._stateful = model, plan.options.stateful
        self._iterator, self._losses = iterator, losses
        data = iterator.data_adapter.fingerprint()
        inputs.share.require_same(data)
        # Not earlier: Keras settles a model's jit_compile when it makes its function.
        self.setup: TrainingSetup = since.setup if since else TrainingSetup(model)
        self.facts = fingerprint.RunFingerprint(
            model, data, inputs.arguments, self.backend
        )
        self.facts.current()  # on JAX the optimizer cannot tell while it trains
        self._built, self._later = is_built(model), list[Difference]()
        if BACKEND == "tensorflow" and self._built and has_keras_step(model):
            build_optimizer(model)  # others have; own steps may train less
        self.callbacks: CallbackStates = CallbackStates(
            callbacks,
            model,
            attempts=session.attempts,
            since=since.callbacks if since else None,
            # Data has a position of its own; arrays have not.
            apart=[] if inputs.only_arrays else [iterator.given],
        )
        self._eager = is_eager(model)
        self.retracing = retracing.of(model, self.backend)
        self.logs: dict[str, float] | None = None
        self._allowed: list[JSON] = []
        # What the model trained with at the restore, until the first epoch begins.
        self._restored_into: JSON | None = None
        self._begun = self._traced = False  # `_traced`: the first step

    # Captured between two batches. -------------------------------------------------

    @no_garbage_collection()
    def begin_epoch(self) -> None:
        """An epoch begins, and every callback has seen ``on_epoch_begin``.

        Raises:
            CheckpointMismatchError: A callback has changed the model since the restore.
                The step would be traced with that change; originally it was not.
        """
        self.setup.begin()
        if not self._begun:
            self.callbacks.begin_steps()
        before, self._restored_into, self._begun = self._restored_into, None, True
        if before is None or self._eager or before == self.setup.now():
            return
        found = differences(before, self.setup.now())
        raise CheckpointMismatchError(
            "A callback changed the model in on_epoch_begin of the resumed epoch. The "
            "training step would be traced with that change; the interrupted run "
            "traced it without.",
            received="\n  " + "\n  ".join(found),
            hint="Change it in on_train_begin, in every attempt; or between two fits, "
            "each with its own checkpoint_dir.",
        )

    def after_step(self) -> bool:
        self.setup.built()
        if not self._traced:
            self._traced = True
            self.callbacks.settle()
            self._warn(OPERATIONS, stateful_random_operations(self._model))
        return not self.setup.settled

    def undo_attributes(self) -> None:
        """Undo what training did to attributes, before another attempt."""
        if self._eager:
            self.callbacks.undo()

    def leaves(self) -> list[variables.Leaf]:
        return variables.leaves(self._model)

    def tensors(self, live: list[variables.Leaf]) -> dict[str, Any]:
        return variables.live_tensors(self._model, live)

    def record(
        self, live: list[variables.Leaf], arrays: dict[str, Any], random: JSON
    ) -> FitRun:
        callbacks, attributes = self.callbacks.capture(arrays)
        stateful = self._stateful.capture(arrays)
        setup = self.setup.to_json(but=paths(attributes))
        changed = setup.get("changed", {})
        self._warn(NOT_SAVED, _others(self.callbacks.uncaptured(), changed))
        self._warn(_RESET, _others(self.callbacks.tree.baked, changed))
        self._warn(_CHANGED, changed)
        # Keras's own step clears gradients first.
        of_keras = has_keras_step(self._model)
        return FitRun(
            stop_training=bool(self._model.stop_training),
            epoch_logs=encode(self.logs, {}, "logs"),
            random=random,
            callbacks=callbacks,
            stateful=stateful,
            fingerprint=self.facts.current(),
            learning_rates=encode(self.facts.rates, {}, "rates"),
            losses=self._losses.state(),
            setup=setup,
            attributes=attributes,
            gradients={} if of_keras else gradients.capture(live, arrays),
            traces=self.retracing.now(),
            allowed=list(self._allowed),
        )

    # Compared and restored. ----------------------------------------------------------

    def parts(self, resume: Resume[FitRun]) -> list[Restorable]:
        """What is compared and restored, in this order."""
        inputs, random = self._iterator.inputs, resume.run.random
        of_run = partial(self._run_differences, resume)
        of_weights = partial(self._weight_differences, resume)
        return [
            Restorable(of_run, partial(resume.move, inputs)),
            Restorable(of_weights, partial(self._restore_variables, resume)),
            Restorable(list, partial(self._restore_objects, resume)),
            Restorable(list, partial(self.restore_random, random, inputs.drawn_ahead)),
        ]

    def _run_differences(self, resume: Resume[FitRun]) -> list[Difference]:
        """How the runs differ, with their data and objects, as far as that is known."""
        run = resume.run
        found = self._compared(resume)
        facts = run.fingerprint["identity"], self.facts.current()["identity"]
        found += _all("callbacks", self.callbacks.differences(run.callbacks))
        found += _all("run", self._stateful.differences(run.stateful))
        found += _all(IN_TRAINING, run.setup.get("changed", {}).values())
        gone = sorted(self.callbacks.gone(run.callbacks))
        self._later += _all(
            SETTINGS, [f"{x} was removed; it had no state" for x in gone]
        )
        resume.find_place(found, *facts)
        new = any(each.of == "optimizer" for each in found)
        rate = [] if new else self._rate_differences(resume)
        # If it is not allowed, the checkpoint's wins.
        return found + ([] if resume.changes.refused(rate) else rate)

    def _compared(self, resume: Resume[FitRun]) -> list[Difference]:
        """How the runs differ, but for what ``build`` accepts."""
        built, saved = is_built(self._model), resume.run.fingerprint
        fits = not built or not self._weight_differences(resume)
        found = comparison.compare(saved, self.facts.current(), built=built, fits=fits)
        self._later += [each for each in found if each.of in _LATER]
        return [each for each in found if each.of not in _LATER]

    def _weight_differences(self, resume: Resume[FitRun]) -> list[Difference]:
        if not is_built(self._model):
            return []
        mine = resume.cast_to(self.leaves())
        return _all("run", layouts.weight_differences(resume.run.variables, mine))

    def build(self, resume: Resume[FitRun], parallel: ParallelStrategy) -> None:
        """Create the variables of the model, its optimizer and its metrics.

        Raises:
            CheckpointMismatchError: They are not those of the checkpoint.
        """
        run, changes, iterator = resume.run, resume.changes, self._iterator
        ensure_built(self._model, iterator, run.variables, self.backend)
        self.callbacks.learn()
        if resume.progress.step and self.callbacks.tree.lacks(run.attributes):
            try_a_step(self._model, iterator, self.backend)
            self.callbacks.learn()
        live = resume.cast_to(self.leaves())
        self.setup.built()
        found = [] if self._built else self._compared(resume)
        resume.require_allowed(found)
        for group in (*variables.GROUPS, "extra"):
            if group not in changes.found:
                lines = layouts.differences(run.variables, live, groups=[group])
                found += _all(group if group in _FRESH else "run", lines)
        if any(each.of == "optimizer" for each in found):
            inside = [x.line for x in self._later if x.line.startswith("optimizer.")]
            found += _all("optimizer", inside)
        if "metrics" not in {*changes.found, *(each.of for each in found)}:
            found += [each for each in self._later if each.of == "metrics"]
        resume.require_allowed(found)
        changes.accept(found + [each for each in self._later if each.of == SETTINGS])
        if "optimizer" not in changes.found and changes.refused(
            self._rate_differences(resume)
        ):
            for name, (was, now) in self.other_rates(resume).items():
                logger.warning(
                    "The script's %s changed from %g to %g. The checkpoint's current "
                    "rate is used: it is part of the optimizer's state. "
                    'Pass allow={"learning_rate"} to use the script\'s.',
                    *(name, was, now),
                )
        self._allowed = changes.every
        if resume.progress.step:  # at step 0, the uninterrupted run was fresh, too
            parallel.warm_up(self._model, iterator, self.backend)

    @no_garbage_collection()
    def _restore_variables(self, resume: Resume[FitRun]) -> None:
        """Set all variables, except those that start fresh.

        Raises:
            CheckpointMismatchError: The model changed since it was compared.
        """
        run, tensors, changes = resume.run, resume.saved.tensors, resume.changes
        but = set(paths(run.attributes)) if self._eager else set()
        lines = self.setup.differences(run.setup, but)
        resume.require_allowed(_all(IN_TRAINING, lines), "Nothing in the model")
        # A run at its start has traced nothing yet.
        traced = resume.progress.step and not self._begun
        self._restored_into = self.setup.now() if traced else None
        new = tuple(f"{group}." for group in _FRESH if group in changes.found)
        every = resume.cast_to(self.leaves())
        live = [leaf for leaf in every if not leaf.name.startswith(new)]
        if "learning_rate" in changes.found:
            found = fingerprint.learning_rates(self._model.optimizer)
            rates = {id(rate): self.facts.rates[n] for n, (rate, _) in found.items()}
            for old, leaf in variables.matched(run.variables, live):
                if id(leaf.target) in rates:
                    names = (old["name"] + suffix for suffix in leaf.copies)
                    rate = np.asarray(rates[id(leaf.target)], leaf.dtype)
                    tensors = {**tensors, **dict.fromkeys(names, rate)}
        variables.assign(self.backend, run.variables, live, tensors)

    def _restore_objects(self, resume: Resume[FitRun]) -> None:
        run, tensors = resume.run, resume.saved.tensors
        self.callbacks.learn()
        self.callbacks.restore(run.callbacks, tensors, run.attributes)
        self._stateful.restore(run.stateful, tensors)
        self._leaves = self.leaves()
        with taking("the gradients"):
            gradients.restore(run.gradients, self._leaves, tensors)
        self._model.stop_training = run.stop_training and not resume.goes_on
        self._losses.restore(run.losses)

    def _rate_differences(self, resume: Resume[FitRun]) -> list[Difference]:
        rates = self.other_rates(resume)
        line = "{}: {:g} in the script that saved, {:g} now"
        return _all(
            "learning_rate", [line.format(n, *pair) for n, pair in rates.items()]
        )

    def other_rates(self, resume: Resume[FitRun]) -> dict[str, tuple[float, float]]:
        """The learning rates of the script that saved and of this one, if not equal."""
        saved, live = decode(resume.run.learning_rates, {}), self.facts.rates
        return {
            name: (saved[name], live[name])
            for name in live
            if name in saved and repr(saved[name]) != repr(live[name])
        }


def _all(of: str, lines: Iterable[str]) -> list[Difference]:
    return [Difference(of, line) for line in lines]


def _others(names: Iterable[str], changed: JSON) -> list[str]:
    """Names of attributes that are not among what changed in the training setup."""
    return [x for x in names if not {x, x.rpartition(" (")[0]} & changed.keys()]
