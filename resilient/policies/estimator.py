"""Options that ``tf.estimator.RunConfig`` had, as arguments of ``fit``.

Only those that say when to save and what to keep. The other options, for sessions,
devices and summaries, belong to Keras or the backend.
"""

import os
import sys
from dataclasses import dataclass
from typing import Any

from resilient.policies import every, latest, one_per

_SECONDS = 600  # TensorFlow's default where neither is given
_ALWAYS = 10_000  # hours, TensorFlow's default: in effect, never


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Accepts the names that ``tf.estimator.RunConfig`` has for saving and retention.

    .. code-block:: python

        config = resilient.RunConfig(model_dir="runs/a", save_checkpoints_steps=500)
        resilient.fit(model, x, y, epochs=10, **config.options())

    Args:
        model_dir: The ``checkpoint_dir``.
        save_checkpoints_steps: Number of batches between saves.
        save_checkpoints_secs: Seconds between saves; 600 if neither is given, and
            whichever comes first if both are.
        keep_checkpoint_max: How many of the newest checkpoints to keep; None or 0 keeps
            all.
        keep_checkpoint_every_n_hours: Also keep one checkpoint per interval of this
            length.

    Raises:
        ValueError: One is not positive.
    """

    model_dir: str | os.PathLike[str]
    save_checkpoints_steps: int | None = None
    save_checkpoints_secs: float | None = None
    keep_checkpoint_max: int | None = 5
    keep_checkpoint_every_n_hours: float = _ALWAYS

    def __post_init__(self) -> None:
        self.options()  # which refuses wrong ones

    def options(self) -> dict[str, Any]:
        """Keyword arguments for ``fit`` and ``ResilientFit``."""
        steps, seconds = self.save_checkpoints_steps, self.save_checkpoints_secs
        if steps is None and seconds is None:
            seconds = _SECONDS
        keep = latest(self.keep_checkpoint_max or sys.maxsize)
        if self.keep_checkpoint_every_n_hours < _ALWAYS:
            keep |= one_per(hours=self.keep_checkpoint_every_n_hours)
        return {
            "checkpoint_dir": self.model_dir,
            "save_freq": every(steps=steps, seconds=seconds),
            "keep": keep,
        }
