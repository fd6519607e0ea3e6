"""Holds a request to stop training: who asked, and how much time is left.

It is only a flag. Signal handlers and the watching thread set it; training checks it
where it can act on it. Nothing here stops anything.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from resilient.display import in_ipython
from resilient.errors import CellStopped, Interrupted, Preempted, TrainingStopped
from resilient.progress import Progress

STOP_FILE = "stop file"  # the reason if somebody touched it
RESERVE = 1.0  # seconds of a grace period that are kept for stopping


@dataclass(frozen=True)
class Stop:
    """A request to stop.

    Attributes:
        reason: Who asked: ``"SIGTERM"``, ``"stop file"``, a cloud's notice...
        until: When the process will be killed, on the clock of ``Requests``.
    """

    reason: str
    until: float


class Requests:
    """Holds the first request to stop; later ones change nothing.

    Args:
        now: A monotonic clock, in seconds.

    Attributes:
        stop: The request, if any.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self.stop: Stop | None = None

    def ask_to_stop(self, reason: str, grace: float = math.inf) -> None:
        """Stop, within ``grace`` seconds."""
        if self.stop is None:
            self.stop = Stop(reason, self.now() + grace)

    def leaves(self, seconds: float = 0.0) -> bool:
        """Whether this much time is left, besides the reserve."""
        end = self.now() + seconds + RESERVE
        return self.stop is None or end <= self.stop.until

    def stopped(self, progress: Progress, *, saved: bool) -> TrainingStopped:
        """The exception that ends fit."""
        reason = "nobody" if self.stop is None else self.stop.reason
        if in_ipython():  # which would exit on SystemExit
            return CellStopped(reason, progress, saved=saved)
        cls = Interrupted if reason == "SIGINT" else Preempted
        return cls(reason, progress, saved=saved)
