"""Options that ``tf.estimator.RunConfig`` had, as arguments of ``fit``.

Only those that say when to save and what to keep. The other options, for sessions,
devices and summaries, belong to Keras or the backend.
"""

import os
import sys
from dataclasses import dataclass
from typing import Any

from resilient.errors import message
from resilient.policies import KeepPolicy, SavePolicy, every, latest, one_per

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
        save_checkpoints_secs: Seconds between saves; 600 if neither is given.
        keep_checkpoint_max: How many of the newest checkpoints to keep; None or 0 keeps
            all.
        keep_checkpoint_every_n_hours: Also keep one checkpoint per interval of this
            length.

    Raises:
        ValueError: Both steps and seconds are given, or one is not positive.
    """

    model_dir: str | os.PathLike[str]
    save_checkpoints_steps: int | None = None
    save_checkpoints_secs: float | None = None
    keep_checkpoint_max: int | None = 5
    keep_checkpoint_every_n_hours: float = _ALWAYS

    def __post_init__(self) -> None:
        steps, seconds = self.save_checkpoints_steps, self.save_checkpoints_secs
        if steps is not None and seconds is not None:
            raise ValueError(
                message(
                    "A RunConfig saves by steps or by seconds, not by both.",
                    received=f"save_checkpoints_steps={steps}, "
                    f"save_checkpoints_secs={seconds}",
                    hint="Give only one, or pass save_freq=every(steps=...) | "
                    "every(seconds=...) to fit.",
                )
            )
        self.options()

    def options(self) -> dict[str, Any]:
        """Keyword arguments for ``fit`` and ``ResilientFit``."""
        return {
            "checkpoint_dir": self.model_dir,
            "save_freq": self._save_freq(),
            "keep": self._keep(),
        }

    def _save_freq(self) -> SavePolicy:
        if self.save_checkpoints_steps is not None:
            return every(steps=self.save_checkpoints_steps)
        seconds = self.save_checkpoints_secs
        return every(seconds=_SECONDS if seconds is None else seconds)

    def _keep(self) -> KeepPolicy:
        newest = latest(self.keep_checkpoint_max or sys.maxsize)
        if self.keep_checkpoint_every_n_hours >= _ALWAYS:
            return newest
        return newest | one_per(hours=self.keep_checkpoint_every_n_hours)
