"""What ``resilient prove`` asks of every training in a process.

It is to be short, to record a digest of each step, and maybe only to draw its data.
"""

import json
import os
from dataclasses import asdict, dataclass
from typing import Any

from resilient.policies import SavePolicy, every

VARIABLE = "RESILIENT_TRIAL"


@dataclass(frozen=True)
class Trial:
    """What is asked.

    Attributes:
        epochs: How many to train at most; None: those of the script.
        steps: How many steps of each epoch at most; None: all.
        save_steps: Also save every so many steps; None: only when the script says so.
        data_only: Whether batches are drawn and not trained on.
    """

    epochs: int | None = None
    steps: int | None = None
    save_steps: int | None = None
    data_only: bool = False

    def environment(self) -> dict[str, str]:
        """The variables that tell a process."""
        return {VARIABLE: json.dumps(asdict(self))}

    @property
    def digest_every(self) -> int | None:
        """As of ``fit``: the state of each step, unless it does not change."""
        return None if self.data_only else 1

    def saving(self, policy: SavePolicy) -> SavePolicy:
        """When to save, where the script says ``policy``."""
        return policy | every(steps=self.save_steps) if self.save_steps else policy


def current() -> Trial | None:
    """What was asked of this process, if anything was."""
    told = os.environ.get(VARIABLE)
    return Trial(**json.loads(told)) if told else None


def draws_only() -> bool:
    """Whether batches are drawn, and not trained on."""
    trial = current()
    return trial is not None and trial.data_only


def fewer_epochs(epochs: int, initial: int = 0) -> int:
    """How many epochs to train, where the script says ``epochs``."""
    trial = current()
    if trial is None or trial.epochs is None:
        return epochs
    return min(epochs, initial + trial.epochs)


def fewer_steps(steps: Any, length: Any) -> Any:
    """How many steps an epoch has; None: as many as the data.

    Args:
        steps: What the script says; None: nothing.
        length: Batches of the data; None: unknown.
    """
    trial = current()
    if trial is None or trial.steps is None:
        return steps
    known = length if steps is None else steps
    return trial.steps if known is None or known > trial.steps else steps
