"""What ``resilient prove`` asks of every training in a process.

Training records a digest of each step. It may be shortened, or only draw its data.
"""

import json
import os
import time
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Annotated, Any

from msgspec import Meta

from resilient.errors import message
from resilient.policies import SavePolicy, every
from resilient.serialization.schema import SchemaError, from_json, parse
from resilient.storage.files import say_once

VARIABLE = "RESILIENT_TRIAL"

_Number = Annotated[int, Meta(ge=1)] | None


@dataclass(frozen=True)
class Trial:
    """The request.

    Attributes:
        epochs: The most epochs to train; None: as many as the script says.
        steps: The most steps of each epoch; None: all.
        save_steps: Also save every so many steps; None: only when the script says so.
        data_only: Whether to draw batches without training on them.
        pause: Seconds to wait after each step, for kills to hit a fast training.
    """

    epochs: _Number = None
    steps: _Number = None
    save_steps: _Number = None
    data_only: bool = False
    pause: Annotated[float, Meta(ge=0, le=60)] = 0.0

    def environment(self) -> dict[str, str]:
        """The environment variables that pass it to a process."""
        return {VARIABLE: json.dumps(asdict(self))}

    @property
    def digest_every(self) -> int | None:
        """As in ``fit``: every step, unless nothing is trained."""
        return None if self.data_only else 1

    def __str__(self) -> str:
        """What is asked for, in words."""
        what = ["nothing is trained" if self.data_only else "each state is digested"]
        if self.epochs is not None:
            what.append(f"at most {self.epochs:,} epochs")
        if self.steps is not None:
            what.append(f"at most {self.steps:,} steps per epoch")
        return ", ".join(what)

    def say(self) -> None:
        """Log that it is in effect, once per process: it may have been left over."""
        say_once(
            f"{VARIABLE} is set, as `resilient prove` does: {self}. Unset it to train "
            "as the script says.",
            of=VARIABLE,
        )

    def saving(self, policy: SavePolicy) -> SavePolicy:
        """When to save, if the script says ``policy``."""
        return policy | every(steps=self.save_steps) if self.save_steps else policy


def current() -> Trial | None:
    """The request to this process, if there is one.

    Raises:
        ValueError: The environment variable is malformed.
    """
    told = os.environ.get(VARIABLE)
    return _parsed(told) if told else None


@lru_cache(maxsize=1)
def _parsed(told: str) -> Trial:
    try:
        return from_json(Trial, parse(told))
    except SchemaError as error:
        raise ValueError(
            message(
                f"{VARIABLE} is not what `resilient prove` sets.",
                received=f"{told[:200]!r}: {error}",
                hint="Unset it.",
            )
        ) from None


def pause() -> None:
    """A step was done."""
    trial = current()
    if trial is not None and trial.pause:
        time.sleep(trial.pause)


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


def fewer_steps(steps: Any, length: Any, at_once: int = 1) -> Any:
    """How many steps an epoch has; None: as many as the data has batches.

    Args:
        steps: What the script says, if it does.
        length: Batches of the data; None: unknown.
        at_once: Steps per execution, of which no part is left out.
    """
    trial = current()
    if trial is None or trial.steps is None:
        return steps
    known = length if steps is None else steps
    most = max(at_once, trial.steps - trial.steps % at_once)
    return most if known is None or known > most else steps
