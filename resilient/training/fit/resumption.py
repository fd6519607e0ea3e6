"""A checkpoint on its way into a fit: compared, built for, and restored.

Nothing is changed before everything is compared, which happens twice, since a model may
have no variables before Keras builds it. Differences that rule out an exact resume
raise one error that lists them all. Differences that may be intended warn, and the
script's value wins; except for the learning rate, where the checkpoint's wins, as part
of the optimizer's state.
"""

import logging
from collections.abc import Sequence
from typing import Any, Protocol

import keras
import numpy as np

from resilient.backends import get_backend
from resilient.backends.base import Backend
from resilient.data.inputs import DataInputs, TrainingInput
from resilient.distributed.strategies.base import ParallelStrategy
from resilient.errors import CheckpointMismatchError
from resilient.objects.callbacks.capture import CallbackStates
from resilient.objects.training_setup import TrainingSetup
from resilient.progress import Progress
from resilient.saving import record
from resilient.saving.run_json import FitRun
from resilient.serialization import JSON
from resilient.serialization.json_values import decode
from resilient.serialization.state_dict import StatefulObjects
from resilient.state import comparison, fingerprint, layouts, variables
from resilient.state.build import ensure_built, is_built, try_a_step
from resilient.state.difference import SETTINGS, Difference
from resilient.storage.checkpoint import Checkpoint
from resilient.training.allowed import Changes, allowing
from resilient.training.position_change import Moved, moved
from resilient.training.run_state import no_garbage_collection

logger = logging.getLogger(__name__)

# In ``allow``: groups of variables that may start fresh, and what concerns the data.
_FRESH = ("optimizer", "metrics")
_OF_DATA = ("data", "batch_size")
_LATER = (SETTINGS, "metrics")


class EpochInput(TrainingInput, Protocol):
    """Keras's iterator over the epochs of the training data, with a position.

    Attributes:
        given: The data as it was given to ``fit``.
    """

    given: Any

    def last_batches(self) -> range:
        """Numbers of the batches trained in the last step (steps_per_execution)."""

    def batches_trained(self) -> int:
        """Batches trained in the epoch that just ended."""

    def let_go(self) -> None:
        """Drop the source of the batches, which fit no longer needs."""


class Resumption:
    """What a fit resumes from.

    Args:
        model: The model that is about to train.
        checkpoint: The checkpoint, verified.
        saved: What is in it.
        facts: The fingerprint of this run.
        setup: What the model trains with.
        allow: What may differ.

    Attributes:
        changes: Differences that this run accepts.
    """

    def __init__(
        self,
        model: keras.Model,
        checkpoint: Checkpoint,
        saved: record.SavedState[FitRun],
        facts: fingerprint.RunFingerprint,
        setup: TrainingSetup,
        *,
        allow: frozenset[str],
    ) -> None:
        self.changes = Changes(allow, saved.run.allowed, checkpoint.progress)
        self._moved: Moved | None = None
        self.checkpoint, self.saved, self.run = checkpoint, saved, saved.run
        self._model, self._facts, self._setup = model, facts, setup
        self._built = is_built(model)
        self._later: list[Difference] = []

    @property
    def progress(self) -> Progress:
        """Where this run continues, counted in its own batches."""
        return self._moved.progress if self._moved else self.checkpoint.progress

    def logs(self) -> dict[str, float] | None:
        """The logs of the last epoch that ended."""
        logs: dict[str, float] | None = decode(self.run.epoch_logs, {})
        return logs

    def is_over(self, epochs: int) -> bool:
        """Whether a run of this many epochs is complete."""
        return self.run.stop_training or self.progress.epoch >= epochs

    def is_alike(self) -> bool:
        """Whether nothing differs that may change what is computed."""
        return not self.changes.found

    def check(self, callbacks: CallbackStates, stateful: StatefulObjects) -> None:
        """Refuse a checkpoint of a different run, before any callback is called.

        Args:
            callbacks: Those of this fit.
            stateful: The user's own objects.

        Raises:
            CheckpointMismatchError: There are differences.
        """
        facts, weights = self._known(), self._other_weights() if self._built else []
        found = self._compared(fits=not weights)
        found += _all("callbacks", callbacks.differences(self.run.callbacks))
        found += _all("run", stateful.differences(self.run.stateful))
        gone = sorted(callbacks.gone(self.run.callbacks))
        unneeded = [f"{name} was removed; it had no state" for name in gone]
        self._later += _all(SETTINGS, unneeded)
        self._require(found, [*self.run.setup.get("changed", {}).values()])
        self._require(_all("run", weights))
        position = self.saved.positions().x
        if position and any(each.of in _OF_DATA for each in found):
            theirs, ours = (each["identity"] for each in facts)
            self._moved = moved(self.checkpoint.progress, position, theirs, ours)
        new = any(each.of == "optimizer" for each in found)
        rate = [] if new else self._learning_rate()
        self.changes.accept(found + ([] if self.changes.refused(rate) else rate))

    def build(
        self, iterator: Any, parallel: ParallelStrategy, callbacks: CallbackStates
    ) -> None:
        """Create the variables of the model, its optimizer and its metrics.

        Raises:
            CheckpointMismatchError: They are not those of the checkpoint.
        """
        ensure_built(self._model, iterator, self.run.variables, get_backend())
        callbacks.learn()
        if self.progress.step and callbacks.tree.lacks(self.run.attributes):
            try_a_step(self._model, iterator, get_backend())
            callbacks.learn()
        live = self._leaves()
        self._setup.built()
        found = []
        if not self._built:
            found = self._compared(fits=not self._other_weights())
            self._require(found)
        for group in (*variables.GROUPS, "extra"):
            if group not in self.changes.found:
                of = group if group in _FRESH else "run"
                layout = self.run.variables
                found += _all(of, layouts.differences(layout, live, groups=[group]))
        if any(each.of == "optimizer" for each in found):
            inside = [x.line for x in self._later if x.line.startswith("optimizer.")]
            found += _all("optimizer", inside)
        if "metrics" not in {*self.changes.found, *(each.of for each in found)}:
            found += [each for each in self._later if each.of == "metrics"]
        self._require(found)
        new = "optimizer" in self.changes.found
        changed = [each for each in self._later if each.of == SETTINGS]
        self.changes.accept(found + changed)
        if not new and self.changes.refused(self._learning_rate()):
            for name, (was, now) in self.other_rates().items():
                logger.warning(
                    "The script's %s changed from %g to %g. The checkpoint's current "
                    "rate is used: it is part of the optimizer's state. "
                    'Pass allow={"learning_rate"} to use the script\'s.',
                    *(name, was, now),
                )
        if self.progress.step:  # at step 0, the uninterrupted run was fresh, too
            parallel.warm_up(self._model, iterator, get_backend())

    def move(self, inputs: DataInputs) -> None:
        """Make the next epoch start at the checkpoint's position in this run's data."""
        if self._moved is not None:
            inputs.move(self._moved.position)
        inputs.resume(self.progress.batch)

    def traces(self) -> JSON:
        """What was compiled, by batch size; for the batches of this run."""
        return {} if self._moved or self.saved.saver else self.run.traces

    def restore_callbacks(
        self, callbacks: CallbackStates, *, last: bool = True
    ) -> None:
        """Restore the state of callbacks; ``last``: for the last time."""
        saved, tensors = self.run.callbacks, self.saved.tensors
        callbacks.restore(saved, tensors, self.run.attributes, last=last)

    @no_garbage_collection()
    def restore_variables(self, backend: Backend) -> None:
        """Set all variables, except those that start fresh."""
        new = tuple(f"{group}." for group in _FRESH if group in self.changes.found)
        live = [leaf for leaf in self._leaves() if not leaf.name.startswith(new)]
        layout, tensors = self.run.variables, self.saved.tensors
        if "learning_rate" in self.changes.found:
            found = fingerprint.learning_rates(self._model.optimizer)
            rates = {id(rate): self._facts.rates[n] for n, (rate, _) in found.items()}
            for old, leaf in variables.matched(layout, live):
                if id(leaf.target) in rates:
                    names = (old["name"] + suffix for suffix in leaf.copies)
                    rate = np.asarray(rates[id(leaf.target)], leaf.dtype)
                    tensors = {**tensors, **dict.fromkeys(names, rate)}
        variables.assign(backend, layout, live, tensors)

    def check_last(self, but: set[str]) -> None:
        """Compare once more, just before the checkpoint is restored into the model.

        Args:
            but: Names of attributes that are restored as well.

        Raises:
            CheckpointMismatchError: There are differences.
        """
        during = self._setup.differences(self.run.setup, but)
        self._require([], during, untouched="Nothing in the model")

    def _other_weights(self) -> list[str]:
        mine = self._leaves()
        return layouts.weight_differences(self.run.variables, mine)

    def _leaves(self) -> list[variables.Leaf]:
        """The live variables, whose dtypes the checkpoint's values are cast to."""
        live = variables.leaves(self._model)
        self.saved = self.saved.taken_by(live)
        self.run = self.saved.run
        return live

    def _compared(self, *, fits: bool) -> list[Difference]:
        """How the runs differ, but for what ``build`` compares and warns of."""
        built = is_built(self._model)
        found = comparison.compare(*self._known(), built=built, fits=fits)
        self._later += [each for each in found if each.of in _LATER]
        return [each for each in found if each.of not in _LATER]

    def _known(self) -> tuple[JSON, JSON]:
        return self.run.fingerprint, self._facts.current()

    def _require(
        self,
        found: list[Difference],
        during: Sequence[str] = (),
        untouched: str = "Nothing",
    ) -> None:
        """Raise if anything differs that is not allowed.

        Args:
            found: Differences that the script made.
            during: Differences that arose during training.
            untouched: What has not been changed.
        """
        found = self.changes.refused(found)
        if not found and not during:
            return
        hint = (
            "Undo the change in the script, use another checkpoint_dir (each phase of "
            "training needs its own; `resilient.enabled` gives it one), or pass "
            'resume="never" to start from scratch.'
        )
        if during:
            hint += (
                " If a callback replaced the optimizer, loss or a metric, or froze "
                "layers: do so between two fits, or before the first batch of every "
                "attempt."
            )
        else:
            hint += allowing(found)
        raise CheckpointMismatchError(
            f"{self.checkpoint.path} belongs to a different run and cannot be "
            f"resumed exactly. {untouched} was changed.",
            received="\n  " + "\n  ".join([*(each.line for each in found), *during]),
            hint=hint,
        )

    def _learning_rate(self) -> list[Difference]:
        """The script's learning rates that changed."""
        line = "{}: {:g} in the script that saved, {:g} now"
        lines = [line.format(name, *pair) for name, pair in self.other_rates().items()]
        return _all("learning_rate", lines)

    def other_rates(self) -> dict[str, tuple[float, float]]:
        """The learning rates of the script that saved and of this one, if not equal."""
        saved, live = decode(self.run.learning_rates, {}), self._facts.rates
        return {
            name: (saved[name], live[name])
            for name in live
            if name in saved and repr(saved[name]) != repr(live[name])
        }


def _all(of: str, lines: Sequence[str]) -> list[Difference]:
    return [Difference(of, line) for line in lines]
