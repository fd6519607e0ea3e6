"""A checkpoint on its way into a fit: compared, built for, and restored.

Nothing is changed before everything was compared; twice, since a model may have no
variables before Keras builds it. Differences that make an exact resume impossible raise
an error that lists them all. Those that may be intended warn, and the script's value
wins; for the learning rate the checkpoint's wins, as part of the optimizer's state.
"""

import logging
from collections.abc import Sequence
from typing import Any, Protocol

import keras

from resilient.backends import get_backend
from resilient.data.inputs import TrainingInput
from resilient.distributed.strategies.base import ParallelStrategy
from resilient.errors import CheckpointMismatchError
from resilient.objects.callbacks.capture import CallbackStates
from resilient.objects.training_setup.changes import TrainingSetup, changes
from resilient.progress import Progress
from resilient.saving import record
from resilient.saving.run_json import FitRun
from resilient.serialization import JSON
from resilient.serialization.decoding import decode
from resilient.serialization.state_dict import StatefulObjects
from resilient.state import comparison, fingerprint, variables
from resilient.state.build import ensure_built, is_built
from resilient.state.comparison import Difference
from resilient.state.variables import GROUPS
from resilient.storage.checkpoint import Checkpoint

logger = logging.getLogger(__name__)

# What a second phase of training may have otherwise, beside what is frozen.
_OF_PHASES = ("data", "batch_size")


class EpochInput(TrainingInput, Protocol):
    """Keras's iterator over the epochs of the training data, with a position."""

    def last_batches(self) -> range:
        """Numbers of the batches that were trained last, all at once."""

    def batches_trained(self) -> int:
        """Batches trained in the epoch that just ended."""

    def let_go(self) -> None:
        """Drop what batches are drawn from, which fit is done with."""


class Resumption:
    """What a fit resumes from.

    Args:
        model: The model that is about to train.
        checkpoint: The checkpoint, verified.
        saved: What is in it.
        facts: The fingerprint of this run.
        setup: What the model trains with.
    """

    def __init__(
        self,
        model: keras.Model,
        checkpoint: Checkpoint,
        saved: record.SavedState[FitRun],
        facts: fingerprint.RunFingerprint,
        setup: TrainingSetup,
    ) -> None:
        self.checkpoint, self.saved, self.run = checkpoint, saved, saved.run
        self._model, self._facts, self._setup = model, facts, setup
        self._built = is_built(model)

    @property
    def progress(self) -> Progress:
        return self.checkpoint.progress

    def logs(self) -> dict[str, float] | None:
        """Of the last epoch that ended."""
        logs: dict[str, float] | None = decode(self.run.epoch_logs, {})
        return logs

    def attributes(self) -> dict[str, Any] | None:
        """Those that steps in Python changed; None where steps were traced."""
        changed: dict[str, Any] | None = decode(self.run.attributes, {})
        return changed

    def is_over(self, epochs: int) -> bool:
        """Whether a run of this many epochs is complete."""
        return self.run.stop_training or self.progress.epoch >= epochs

    def check(self, callbacks: CallbackStates, stateful: StatefulObjects) -> None:
        """Refuse a checkpoint of another run, before any callback is called.

        Args:
            callbacks: Those of this fit.
            stateful: The user's own objects.

        Raises:
            CheckpointMismatchError: There are differences.
        """
        saved, live = self.run.fingerprint, self._facts.current()
        found = comparison.identity_differences(saved, live, layers=self._built)
        for of, lines in (
            ("callbacks", callbacks.differences(self.run.callbacks)),
            ("run", stateful.differences(self.run.stateful)),
        ):
            found += [Difference(of, line) for line in lines]
        during = changes(self.run.setup)
        if self._built:
            self._require_same_phase(found)
            if not found and not during:
                mine = variables.leaves(self._model)
                lines = variables.weight_differences(self.run.variables, mine)
                found = [Difference("run", line) for line in lines]
        self._require(found, during)
        if self._built:
            self._warn()
        self._say_learning_rate()

    def build(self, iterator: Any, parallel: ParallelStrategy) -> None:
        """Let the model, its optimizer and its metrics have their variables.

        Raises:
            CheckpointMismatchError: They are others than the checkpoint has.
        """
        ensure_built(self._model, iterator, self.run.variables, get_backend())
        self._setup.built()
        found = []
        if not self._built:
            facts = self.run.fingerprint, self._facts.current()
            found = comparison.identity_differences(*facts)
            self._require_same_phase(found)
        if not found:
            live = variables.leaves(self._model)
            lines = variables.differences(self.run.variables, live)
            found = [Difference("run", line) for line in lines]
        self._require(found)
        if not self._built:
            self._warn()
        parallel.warm_up(self._model, iterator, get_backend())

    def check_last(self, but: set[str]) -> None:
        """Just before the checkpoint is restored into the model.

        Args:
            but: Names of attributes that are restored, too.

        Raises:
            CheckpointMismatchError: There are differences.
        """
        during = self._setup.differences(self.run.setup, but)
        self._require([], during, untouched="Nothing of the model")

    def _require_same_phase(self, found: list[Difference]) -> None:
        """Raise where the same model is trained in another way, or on other data.

        Fine-tuning in the directory of the training before is the most frequent
        mistake, and its differences say nothing to who makes it.

        Args:
            found: What else differs.
        """
        if any(each.of not in _OF_PHASES for each in found):
            return
        phase = []
        saved, live = self.run.variables, variables.leaves(self._model)
        if variables.differences(saved, live, groups=GROUPS[:2]):
            facts = self.run.fingerprint, self._facts.current()
            phase = comparison.refrozen(*facts)
        if found and (phase or self.checkpoint.finished):
            phase.append("the data is another")
        if not phase:
            return
        finished = ", which has finished" if self.checkpoint.finished else ""
        raise CheckpointMismatchError(
            f"This looks like a second training phase: {', and '.join(phase)}.",
            received=f"{self.checkpoint.path} of the first phase{finished}. Nothing "
            "was changed.",
            hint="Give each phase a checkpoint_dir of its own, or use "
            "resilient.enabled(...), which does that. "
            'resume="never" starts over in this one.',
        )

    def _require(
        self,
        found: list[Difference],
        during: Sequence[str] = (),
        untouched: str = "Nothing",
    ) -> None:
        """Raise if anything differs.

        Args:
            found: What the script made otherwise.
            during: What changed in the middle of training.
            untouched: What was not changed.
        """
        if not found and not during:
            return
        hint = (
            "Restore the script, use another checkpoint_dir, or pass "
            'resume="never" to start from scratch.'
        )
        if during:
            hint += (
                " If a callback replaced the optimizer, loss or a metric, or froze "
                "layers: do that between two fits, or before the first batch of every "
                "attempt."
            )
        raise CheckpointMismatchError(
            f"{self.checkpoint.path} belongs to another run: it cannot be "
            f"resumed exactly. {untouched} was changed.",
            received="\n  " + "\n  ".join([*(each.line for each in found), *during]),
            hint=hint,
        )

    def _warn(self) -> None:
        comparison.warn_of_settings(self.run.fingerprint, self._facts.current())

    def _say_learning_rate(self) -> None:
        saved = decode(self.run.learning_rate, {})
        live = self._facts.learning_rate
        if saved is not None and live is not None and saved != live:
            logger.warning(
                "The script's learning rate changed from %g to %g. The checkpoint's "
                "current rate is used: it is part of the optimizer's state.",
                saved,
                live,
            )


def changed_before_a_step(before: JSON, now: JSON) -> CheckpointMismatchError:
    """The error where a resumed step would be traced with what was changed just now.

    Args:
        before: What the model trained with when the checkpoint was restored.
        now: The same before the first batch.
    """
    found = comparison.differences(before, now)
    return CheckpointMismatchError(
        "A callback changed the model in on_epoch_begin of the resumed epoch. The "
        "step would be traced with that change; the interrupted run traced it without.",
        received="\n  " + "\n  ".join(found),
        hint="Change it in on_train_begin, in every attempt; or between two fits, each "
        "with its own checkpoint_dir.",
    )
