"""What ``resilient prove`` asks of every training in a process.

Training records a digest of each step. It may be shortened, or only draw its data.
"""

import json
import os
from dataclasses import asdict, dataclass
from typing import Any

from resilient.policies import SavePolicy, every

VARIABLE = "RESILIENT_TRIAL"


@dataclass(frozen=True)
class Trial:
    """The request.

    Attributes:
        epochs: The most epochs to train; None: as many as the script says.
        steps: The most steps of each epoch; None: all.
        save_steps: Also save every so many steps; None: only when the script says so.
        data_only: Whether to draw batches without training on them.
    """

    epochs: int | None = None
    steps: int | None = None
    save_steps: int | None = None
    data_only: bool = False

    def environment(self) -> dict[str, str]:
        """The environment variables that pass it to a process."""
        return {VARIABLE: json.dumps(asdict(self))}

    @property
    def digest_every(self) -> int | None:
        """As in ``fit``: every step, unless nothing is trained."""
        return None if self.data_only else 1

    def saving(self, policy: SavePolicy) -> SavePolicy:
        """When to save, if the script says ``policy``."""
        return policy | every(steps=self.save_steps) if self.save_steps else policy


def current() -> Trial | None:
    """The request to this process, if there is one."""
    told = os.environ.get(VARIABLE)
    return Trial(**json.loads(told)) if told else None


def draws_only() -> bool:
    """Whether to draw batches without training on them."""
    trial = current()
    return trial is not None and trial.data_only


def fewer_epochs(epochs: int, initial: int = 0) -> int:
    """How many epochs to train, if the script says ``epochs``."""
    trial = current()
    if trial is None or trial.epochs is None:
        return epochs
    return min(epochs, initial + trial.epochs)


def fewer_steps(steps: Any, length: Any) -> Any:
    """How many steps an epoch has; None: as many as the data has batches.

    Args:
        steps: What the script says, if it does.
        length: Batches of the data; None: unknown.
    """
    trial = current()
    if trial is None or trial.steps is None:
        return steps
    known = length if steps is None else steps
    return trial.steps if known is None or known > trial.steps else steps
