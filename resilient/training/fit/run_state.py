"""The state of a fit: captured between two batches, and restored."""

from collections.abc import Mapping
from typing import Any

import keras

from resilient.backends.base import Backend, HeldTensors, Part
from resilient.errors import CheckpointMismatchError
from resilient.objects.attribute_watch import AttributeWatch, is_value, parts_of
from resilient.objects.callbacks.capture import CallbackStates
from resilient.objects.training_setup.changes import OF_COMPILE, TrainingSetup, is_eager
from resilient.objects.training_setup.describe import settings_of
from resilient.progress import Progress
from resilient.saving.run_json import FitRun
from resilient.saving.snapshot import Snapshot
from resilient.serialization import JSON
from resilient.serialization.json_values import encode
from resilient.serialization.position import Positions
from resilient.serialization.state_dict import StatefulObjects
from resilient.state import retracing, variables
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
        self._attributes = AttributeWatch(
            parts_of(model), but=self._told_elsewhere, new=True
        )
        self.retracing = retracing.of(model, backend)
        self._allowed: list[JSON] = []
        self._put_into: dict[str, Any] | None = None  # until the first epoch begins
        self._begun = self._looked = False  # `_looked`: at the step, once it is traced

    @no_garbage_collection()
    def begin(self) -> None:
        """An epoch begins, and every callback has seen ``on_epoch_begin``.

        Raises:
            CheckpointMismatchError: A callback has changed the model since the restore.
                The step would be traced with that change; originally it was not.
        """
        self.setup.begin()
        before, self._put_into, self._begun = self._put_into, None, True
        if before is not None and not self._eager and before != self.setup.now():
            raise _changed_before_a_step(before, self.setup.now())
        self._facts.architecture.now()  # on JAX, the optimizer cannot tell from now on

    def after_step(self) -> bool:
        self.setup.built()
        if not self._looked:
            self._looked = True
            self._warnings.operations(stateful_random_operations(self._model))
        return not self.setup.settled

    def leaves_after(self, step: int) -> list[Any]:
        self._leaves = self._leaves or variables.leaves(self._model)
        few = samples.chosen(self._leaves, step)
        return list(variables.live_tensors(self._model, few).values())

    def undo_attributes(self) -> None:
        """Undo what training did to attributes, before another attempt."""
        if self._eager:
            self._attributes.restore({})

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
        callbacks = self.callbacks.capture(arrays)
        stateful = self._stateful.capture(arrays)
        live = self._leaves = variables.leaves(self._model)
        attributes = self._attributes.changed()
        kept = {k: v for k, v in attributes.items() if self._eager and is_value(v)}
        setup = self.setup.to_json(but=kept)
        lost = [name for name in attributes if name not in kept]
        self._warnings.callbacks(self.callbacks.uncaptured())
        self._warnings.attributes(lost, _KEEP_IN)
        self._warnings.changed(
            "",
            setup,
            do_it="between two fits, each with its own checkpoint_dir, or before the "
            "first batch of every attempt",
        )
        run = FitRun(
            progress=progress._asdict(),
            stop_training=bool(self._model.stop_training),
            epoch_logs=encode(logs, {}, "logs"),
            random=random,
            callbacks=callbacks,
            stateful=stateful,
            fingerprint=self._facts.current(),
            learning_rate=encode(self._facts.learning_rate, {}, "rate"),
            losses=self._losses.state(),
            setup=setup,
            attributes=encode(kept, {}, "attributes") if self._eager else None,
            traces=self.retracing.now(),
            architecture=None if setup.get("now") else self._facts.architecture.now(),
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
        attributes = resumption.attributes()
        resumption.check_last(self._put_back_later(attributes))
        # A run at its start has traced nothing yet.
        traced = resumption.progress.step and not self._begun
        self._put_into = self.setup.now() if traced else None
        resumption.restore_variables(self._backend)
        resumption.restore_callbacks(self.callbacks)
        self._allowed = resumption.changes.every
        self._stateful.restore(run.stateful, tensors)
        if attributes is not None:
            self._put_back_attributes(attributes)
        self._model.stop_training = run.stop_training
        self._leaves = variables.leaves(self._model)
        self._losses.restore(run.losses)
        self._restore_random(run.random, drawn_ahead)

    def _put_back_later(self, saved: Mapping[str, Any] | None) -> set[str]:
        """Names of attributes that ``restore`` sets."""
        if saved is None or not self._eager:
            return set()
        return {*saved, *self._attributes.changed()}

    def _told_elsewhere(self, part: Any) -> tuple[str, ...]:
        """Attributes of the model or its parts that its setup covers."""
        own = OF_COMPILE if part is self._model else ()
        return own if self._eager else (*own, *settings_of(type(part)))

    def _put_back_attributes(self, changed: Mapping[str, Any]) -> None:
        if self._eager:
            self._attributes.restore(changed)
        else:  # steps that changed them ran as Python, and are now traced
            self._warnings.attributes(changed, _KEEP_IN)


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
