"""All that makes a checkpoint of a run: taken between two batches, and put back.

What a run's state is comes together here; where the data is, and when to take it, is
the attempt's business, and how it is written that of others.
"""

from collections.abc import Mapping
from typing import Any

import keras

from resilient.backends.base import Backend, Part
from resilient.objects.attribute_watch import AttributeWatch, is_value, parts_of
from resilient.objects.callbacks.capture import CallbackStates
from resilient.objects.makeup.look import is_eager
from resilient.objects.makeup.makeup import OF_COMPILE, Makeup
from resilient.objects.makeup.values import settings_of
from resilient.progress import Progress
from resilient.saving import record
from resilient.saving.run_json import FitRun
from resilient.saving.snapshot import SnapshotTaker
from resilient.serialization.json_values import decode, encode
from resilient.serialization.position import Positions
from resilient.serialization.schema import to_json
from resilient.serialization.state_dict import StatefulObjects
from resilient.state import model_config, retracing, rng, variables
from resilient.state.fingerprint import RunFingerprint
from resilient.training.divergence.loss_watch import LossWatch
from resilient.training.fit.compatibility import (
    CompatibilityCheck,
    changed_before_a_step,
)
from resilient.training.inexact import InexactWarnings


class FitState:
    """The state of one fit, once every callback was told that training begins.

    Args:
        model: The compiled model.
        backend: Its backend's adapter.
        callbacks: Those of this fit.
        stateful: The user's own objects, by name.
        facts: What the run is.
        makeup: What the model trains with.
        losses: Looks at the loss of each batch.
        part: Which part of a checkpoint this process makes.
    """

    def __init__(
        self,
        model: keras.Model,
        backend: Backend,
        callbacks: CallbackStates,
        stateful: StatefulObjects,
        *,
        facts: RunFingerprint,
        makeup: Makeup,
        losses: LossWatch,
        part: Part,
    ) -> None:
        self.callbacks = callbacks
        self._model, self._backend = model, backend
        self._stateful, self._facts, self._losses = stateful, facts, losses
        self.makeup = makeup
        self._eager = is_eager(model)
        self._attributes = AttributeWatch(parts_of(model), but=self._told_elsewhere)
        self._warnings = InexactWarnings(model)
        self._snapshots = SnapshotTaker(backend, part)
        self._architecture = model_config.Architecture(model)
        self.retracing = retracing.of(model, backend)
        self._put_into: dict[str, Any] | None = None  # until the first epoch begins
        self._begun = False

    def begin(self) -> None:
        """An epoch begins, and every callback was told so.

        Raises:
            CheckpointMismatchError: A callback changed the model since the checkpoint
                was put back. The step would be traced with that, and was not before.
        """
        self.makeup.begin()
        before, self._put_into, self._begun = self._put_into, None, True
        if before is not None and not self._eager and before != self.makeup.now():
            raise changed_before_a_step(before, self.makeup.now())
        self._architecture.now()  # on JAX the optimizer cannot tell while it trains

    def after_step(self) -> None:
        """A training step was done."""
        self.makeup.built()
        self._warnings.after_step()

    def undo_attributes(self) -> None:
        """Undo what training did to attributes, before another attempt follows."""
        if self._eager:
            self._attributes.restore({})

    def take(
        self,
        progress: Progress,
        positions: Positions,
        random: Any,
        *,
        logs: Mapping[str, float] | None,
    ) -> record.PendingCheckpoint:
        """Take a snapshot of everything.

        Args:
            progress: Where training is.
            positions: Where the data is.
            random: The random state of this moment.
            logs: Of the last epoch that ended.
        """
        arrays: dict[str, Any] = {}
        encoded = encode(to_json(positions), arrays, "data")
        callbacks = self.callbacks.capture(arrays)
        stateful = self._stateful.capture(arrays)
        live = variables.leaves(self._model)
        attributes = self._attributes.changed()
        kept = {k: v for k, v in attributes.items() if self._eager and is_value(v)}
        makeup = self.makeup.to_json(but=kept)
        lost = [name for name in attributes if name not in kept]
        self._warnings.at_save(self.callbacks.uncaptured(), lost, makeup)
        run = FitRun(
            progress=progress.to_json(),
            stop_training=bool(self._model.stop_training),
            epoch_logs=encode(logs, {}, "logs"),
            random=random,
            callbacks=callbacks,
            stateful=stateful,
            fingerprint=self._facts.current(),
            learning_rate=encode(self._facts.learning_rate, {}, "rate"),
            losses=self._losses.state(),
            makeup=makeup,
            attributes=encode(kept, {}, "attributes") if self._eager else None,
            traces=self.retracing.now(),
            architecture=None if makeup.get("now") else self._architecture.now(),
        )
        tensors = variables.live_tensors(self._model, live)
        return self._snapshots.take(run, encoded, live, tensors, arrays)

    def restore(
        self,
        saved: record.SavedState[FitRun],
        drawn_ahead: set[str | int],
        comparison: CompatibilityCheck,
    ) -> None:
        """Set everything, the random state last.

        Args:
            saved: What to set.
            drawn_ahead: Random generators that the data draws from ahead of training.
            comparison: Looks at the model a last time before it is changed.
        """
        comparison.last(self._put_back_later(saved.run))
        self._put_into = None if self._begun else self.makeup.now()
        live = variables.leaves(self._model)
        variables.assign(self._backend, saved.run.variables, live, saved.tensors)
        self.callbacks.restore(saved.run.callbacks, saved.tensors)
        self._stateful.restore(saved.run.stateful, saved.tensors)
        if saved.run.attributes is not None:
            self._put_back_attributes(decode(saved.run.attributes, {}))
        self._model.stop_training = saved.run.stop_training
        self._losses.restore(saved.run.losses)
        random, now = saved.run.random, rng.capture(self._backend)
        left = rng.drawn_from(random, now) & drawn_ahead
        self._warnings.at_restore(sorted(left))
        rng.restore(self._backend, random, leave=left)

    def _put_back_later(self, run: FitRun) -> set[str]:
        """Names of attributes that ``restore`` sets."""
        if run.attributes is None or not self._eager:
            return set()
        return {*decode(run.attributes, {}), *self._attributes.changed()}

    def _told_elsewhere(self, part: Any) -> tuple[str, ...]:
        """Attributes of the model or a part of it that its makeup tells of."""
        own = OF_COMPILE if part is self._model else ()
        return own if self._eager else (*own, *settings_of(type(part)))

    def _put_back_attributes(self, changed: Mapping[str, Any]) -> None:
        if self._eager:
            self._attributes.restore(changed)
        else:  # they were changed where steps ran as Python, and now they are traced
            self._warnings.lost(changed)
