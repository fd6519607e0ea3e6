"""Detects a batch whose loss is not finite, or far above the usual.

Keras logs the running mean of an epoch, which hides a spike: the loss of a batch is
recovered from two of these means. The result depends only on the losses, never on when
they are checked, so a repeated run detects the same.
"""

import math
import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from resilient.distributed.group import ALONE, Group
from resilient.errors import NotSupportedError
from resilient.serialization import JSON
from resilient.serialization.schema import SavedLosses, from_json, to_json

_WINDOW = 100  # batches; a spike is compared with their median
_FEWEST = 20  # batches needed before anything counts as a spike


@dataclass(frozen=True)
class Bad:
    """A batch whose loss is bad.

    Attributes:
        step: Its number since the start of the run, from 0.
        value: Its loss.
        why: What is wrong with it.
        batches: How many were trained in this step, of which it is the last; Keras
            reports one loss for all of them.
    """

    step: int
    value: float
    why: str
    batches: int = 1


class Diverged(BaseException):
    """Ends Keras's ``fit`` from inside, past any ``except Exception``."""

    def __init__(self, bad: Bad) -> None:
        super().__init__(bad)
        self.bad = bad


class LossWatch:
    """Checks the loss of every trained batch.

    Args:
        spike: A loss is bad above this many times the median of the last 100; None:
            only if it is not finite.
        active: Whether losses are checked at all.
        group: The processes that train; the mean of their losses counts.
    """

    def __init__(
        self, spike: float | None, *, active: bool, group: Group = ALONE
    ) -> None:
        self.active = active
        self._group = group
        self._spike = spike
        self._pending: deque[tuple[int, int, Any]] = deque()
        self._batches = 0  # checked batches of this epoch
        self._mean = 0.0  # of their losses
        self._good: deque[float] = deque(maxlen=_WINDOW)

    def begin_epoch(self) -> None:
        """Keras's mean starts over."""
        self._pending.clear()
        self._batches, self._mean = 0, 0.0

    def note(self, step: int, batches: int, logs: Mapping[str, Any] | None) -> None:
        """Note trained batches; the device may still be busy, so nothing is read.

        Args:
            step: Number of the last one since the start of the run, from 0.
            batches: How many.
            logs: What Keras logged.

        Raises:
            NotSupportedError: The logs have no loss.
        """
        if not logs or "loss" not in logs:
            raise NotSupportedError(
                "The losses cannot be checked: this model's training step logs no "
                "loss.",
                received=f"logs of {sorted(logs or ())}",
                hint='Return a "loss" from train_step, or pass on_nan="ignore".',
            )
        self._pending.append((step, batches, logs["loss"]))

    def check(self, *, all_of_them: bool) -> None:
        """Check the batches noted.

        Args:
            all_of_them: Wait for the device if necessary; otherwise leave the last
                batch for the next time.

        Raises:
            Diverged: One of them is bad.
        """
        while len(self._pending) > (0 if all_of_them else 1):
            step, batches, loss = self._pending.popleft()
            losses = self._group.gather("loss", float(loss))
            found = self._judged(batches, losses) if losses else None
            found = self._group.broadcast("bad", found)
            if found is not None:
                mean, why = found
                raise Diverged(Bad(step, mean, why, batches))

    def _judged(self, batches: int, losses: list[float]) -> tuple[float, str] | None:
        """The loss of some batches, and what is wrong with it, if anything."""
        mean = losses[0] if len(losses) == 1 else statistics.fmean(losses)
        if not math.isfinite(mean):
            return mean, "the loss is not finite"
        if self._spike is None:
            return None
        total = self._batches + batches
        loss = (mean * total - self._mean * self._batches) / batches
        self._batches, self._mean = total, mean
        if len(self._good) >= _FEWEST:
            usual = statistics.median(self._good)
            if loss > self._spike * usual > 0:
                why = f"the loss is {loss / usual:.3g} times the usual {usual:.3g}"
                return loss, why
        self._good.append(loss)
        return None

    def state(self) -> JSON:
        """What it has seen so far, as JSON."""
        return to_json(SavedLosses(self._batches, self._mean, list(self._good)))

    def restore(self, state: JSON) -> None:
        """Set what ``state`` returned."""
        seen = from_json(SavedLosses, state)
        self._pending.clear()
        self._batches, self._mean = seen.batches, seen.mean
        self._good = deque(seen.good, maxlen=_WINDOW)
