"""The state of a fit: captured between two batches, and restored."""

from collections.abc import Iterable, Mapping
from typing import Any

import keras

from resilient.backends.base import Backend, HeldTensors, Part
from resilient.errors import CheckpointMismatchError
from resilient.objects.adapters import gradients
from resilient.objects.callbacks.capture import CallbackStates
from resilient.objects.training_setup import TrainingSetup, is_eager
from resilient.objects.tree import paths
from resilient.progress import Progress
from resilient.saving.run_json import FitRun
from resilient.saving.snapshot import Snapshot
from resilient.serialization import JSON
from resilient.serialization.json_values import encode
from resilient.serialization.position import Positions
from resilient.serialization.schema import taking
from resilient.serialization.state_dict import StatefulObjects
from resilient.state import retracing, variables
from resilient.state.build import has_keras_step
from resilient.state.difference import differences
from resilient.state.fingerprint import RunFingerprint
from resilient.state.rng_ops import stateful_random_operations
from resilient.training.divergence.loss_watch import LossWatch
from resilient.training.fit.resumption import Resumption
from resilient.training.run_state import RunState, no_garbage_collection
from resilient.witness import samples

_KEEP_IN = "a keras.Variable, in a callback or in `stateful`"


class FitState(RunState):
    """The state of one fit, once every callback has seen ``on_train_begin``.

    Args:
        model: The compiled model.
        backend: Its backend's adapter.
        part: Which part of a checkpoint this process writes.
        callbacks: Those of this fit.
        stateful: The user's own objects, by name.
        facts: The identity of the run.
        setup: What the model trains with.
        losses: Watches the loss of each batch.
    """

    def __init__(
        self,
        model: keras.Model,
        backend: Backend,
        part: Part,
        *,
        callbacks: CallbackStates,
        stateful: StatefulObjects,
        facts: RunFingerprint,
        setup: TrainingSetup,
        losses: LossWatch,
    ) -> None:
        super().__init__(backend, part)
        self.callbacks, self.setup = callbacks, setup
        self._model, self._stateful = model, stateful
        self._facts, self._losses = facts, losses
        self._eager = is_eager(model)
        self.retracing = retracing.of(model, backend)
        self._allowed: list[JSON] = []
        self._restored_into: dict[str, Any] | None = (
            None  # until the first epoch begins
        )
        self._begun = self._traced = False  # `_traced`: the first step

    @no_garbage_collection()
    def begin(self) -> None:
        """An epoch begins, and every callback has seen ``on_epoch_begin``.

        Raises:
            CheckpointMismatchError: A callback has changed the model since the restore.
                The step would be traced with that change; originally it was not.
        """
        self.setup.begin()
        if not self._begun:
            self.callbacks.begin_steps()
        before, self._restored_into, self._begun = self._restored_into, None, True
        if before is not None and not self._eager and before != self.setup.now():
            raise _changed_before_a_step(before, self.setup.now())

    def after_step(self) -> bool:
        self.setup.built()
        if not self._traced:
            self._traced = True
            self.callbacks.settle()
            self._warnings.operations(stateful_random_operations(self._model))
        return not self.setup.settled

    def leaves_after(self, step: int) -> list[Any]:
        self._leaves = self._leaves or variables.leaves(self._model)
        few = samples.chosen(self._leaves, step)
        return list(variables.live_tensors(self._model, few).values())

    def undo_attributes(self) -> None:
        """Undo what training did to attributes, before another attempt."""
        if self._eager:
            self.callbacks.undo()

    def take(
        self,
        progress: Progress,
        positions: Positions,
        random: Any,
        *,
        logs: Mapping[str, float] | None,
        reuse: HeldTensors | None,
    ) -> Snapshot:
        arrays: dict[str, Any] = {}
        callbacks, attributes = self.callbacks.capture(arrays)
        stateful = self._stateful.capture(arrays)
        live = self._leaves = variables.leaves(self._model)
        setup = self.setup.to_json(but=paths(attributes))
        # Keras's own step clears gradients first.
        of_keras = has_keras_step(self._model)
        baked = self.callbacks.tree.baked
        self._warnings.callbacks(_others(self.callbacks.uncaptured(), setup))
        self._warnings.attributes(_others(baked, setup), _KEEP_IN)
        self._warnings.changed(
            "",
            setup,
            do_it="between two fits, each with its own checkpoint_dir, or before the "
            "first batch of every attempt",
        )
        run = FitRun(
            stop_training=bool(self._model.stop_training),
            epoch_logs=encode(logs, {}, "logs"),
            random=random,
            callbacks=callbacks,
            stateful=stateful,
            fingerprint=self._facts.current(),
            learning_rates=encode(self._facts.rates, {}, "rates"),
            losses=self._losses.state(),
            setup=setup,
            attributes=attributes,
            gradients={} if of_keras else gradients.capture(live, arrays),
            traces=self.retracing.now(),
            allowed=list(self._allowed),
        )
        tensors = variables.live_tensors(self._model, live)
        return self._snapshot(
            run, positions, live, tensors, arrays, progress=progress, reuse=reuse
        )

    def restore(self, resumption: Resumption, drawn_ahead: set[str | int]) -> None:
        """Set everything, the random state last.

        Args:
            resumption: What to set; it checks the model one last time.
            drawn_ahead: Random generators that prefetching data draws from.
        """
        run, tensors = resumption.run, resumption.saved.tensors
        resumption.check_last(set(paths(run.attributes)) if self._eager else set())
        # A run at its start has traced nothing yet.
        traced = resumption.progress.step and not self._begun
        self._restored_into = self.setup.now() if traced else None
        resumption.restore_variables(self._backend)
        self.callbacks.learn()
        resumption.restore_callbacks(self.callbacks)
        self._allowed = resumption.changes.every
        self._stateful.restore(run.stateful, tensors)
        self._leaves = variables.leaves(self._model)
        with taking("the gradients"):
            gradients.restore(run.gradients, self._leaves, tensors)
        self._model.stop_training = run.stop_training
        self._losses.restore(run.losses)
        self._restore_random(run.random, drawn_ahead)


def _others(names: Iterable[str], setup: JSON) -> list[str]:
    """Names of attributes of which the training setup says nothing."""
    said = setup.get("changed", {})
    return [
        name
        for name in names
        if name not in said and name.rpartition(" (")[0] not in said
    ]


def _changed_before_a_step(before: JSON, now: JSON) -> CheckpointMismatchError:
    """The error if a resumed step would be traced with a change made just now.

    Args:
        before: What the model trained with when the checkpoint was restored.
        now: The same before the first batch.
    """
    found = differences(before, now)
    return CheckpointMismatchError(
        "A callback changed the model in on_epoch_begin of the resumed epoch. The "
        "training step would be traced with that change; the interrupted run traced "
        "it without.",
        received="\n  " + "\n  ".join(found),
        hint="Change it in on_train_begin, in every attempt; or between two fits, "
        "each with its own checkpoint_dir.",
    )
