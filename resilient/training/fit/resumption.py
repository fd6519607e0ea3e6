"""A checkpoint on its way into a fit: compared, built for, and put into the model.

Compared twice, since a model may have no variables before Keras builds it. Nothing is
changed before it was compared whole.
"""

from typing import Any

import keras

from resilient.backends import get_backend
from resilient.distributed.strategies.base import ParallelStrategy
from resilient.objects.makeup.makeup import Makeup
from resilient.progress import Progress
from resilient.saving import record
from resilient.saving.run_json import FitRun
from resilient.serialization.json_values import decode
from resilient.serialization.position import Positions
from resilient.state.build import ensure_built
from resilient.state.fingerprint import RunFingerprint
from resilient.storage.checkpoint import Checkpoint
from resilient.training.fit.compatibility import CompatibilityCheck
from resilient.training.fit.run_state import FitState


class Resumption:
    """What a fit resumes from.

    Args:
        checkpoint: The checkpoint, verified.
        saved: What is in it.
    """

    def __init__(
        self, checkpoint: Checkpoint, saved: record.SavedState[FitRun]
    ) -> None:
        self.checkpoint, self._saved = checkpoint, saved
        self._compatible: CompatibilityCheck | None = None

    @property
    def run(self) -> FitRun:
        return self._saved.run

    @property
    def progress(self) -> Progress:
        return self.checkpoint.progress

    def positions(self) -> Positions:
        """Where the data is."""
        return self._saved.positions()

    def logs(self) -> dict[str, float] | None:
        """Of the last epoch that ended."""
        logs: dict[str, float] | None = decode(self.run.epoch_logs, {})
        return logs

    def is_over(self, epochs: int) -> bool:
        """Whether nothing is left of a run of so many epochs."""
        return self.run.stop_training or self.progress.epoch >= epochs

    def check(
        self,
        model: keras.Model,
        facts: RunFingerprint,
        makeup: Makeup,
        others: list[str],
    ) -> None:
        """Refuse a checkpoint of another run, before a callback was told anything.

        Args:
            model: The compiled model.
            facts: What this run is.
            makeup: What the model trains with.
            others: Differences that were found elsewhere.

        Raises:
            CheckpointMismatchError: It is of another run.
        """
        self._compatible = CompatibilityCheck(
            self.checkpoint, self.run, facts, makeup, model
        )
        self._compatible.check_before_build(others)

    def build(
        self, model: keras.Model, iterator: Any, parallel: ParallelStrategy
    ) -> None:
        """Let the model have its variables, and compare these.

        Raises:
            CheckpointMismatchError: They are others.
        """
        assert self._compatible is not None
        ensure_built(model, iterator, self.run.variables, get_backend())
        self._compatible.check_after_build()
        parallel.warm_up(model, iterator, get_backend())

    def restore_callbacks(self, state: FitState) -> None:
        """What callbacks know, which ``on_epoch_begin`` may rely on."""
        state.callbacks.restore(self.run.callbacks, self._saved.tensors)

    def restore(self, state: FitState, drawn_ahead: set[str | int]) -> None:
        """Set everything, the random state last."""
        assert self._compatible is not None
        state.restore(self._saved, drawn_ahead, self._compatible)
