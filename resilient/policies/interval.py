"""How often to save, given the cost of a save, and what measures that cost.

Saving often costs training time; saving rarely loses more work when the process is
killed. Young (1974) and Daly (2006) minimise the sum with an interval of the square
root of twice the cost times the mean time between failures. The interval is longer if
saves would otherwise exceed the overhead budget.
"""

import math
import statistics
from collections import deque
from dataclasses import dataclass

from resilient.progress import Progress

_FIRST = 5.0  # seconds after the first batch: measuring needs a save
_KEPT = 5  # last saves, so that an outlier does not count


@dataclass(frozen=True)
class Cost:
    """The measured cost of a save, in seconds.

    Attributes:
        training: Time that training loses: it waits for the snapshot, and its batches
            are slower while the snapshot is written.
        write: Time until it is on disk; the next save cannot begin earlier.
    """

    training: float
    write: float


@dataclass(frozen=True)
class Adaptive:
    """Save as often as the cost allows.

    Attributes:
        overhead: The largest share of training time that saves may take.
        mtbf: Mean time between failures, seconds.
    """

    overhead: float
    mtbf: float

    def interval(self, cost: Cost | None) -> float:
        """Seconds between two saves; before a cost is known, until the first one."""
        if cost is None:
            return _FIRST
        young = math.sqrt(2 * cost.training * self.mtbf)
        return max(young, cost.training / self.overhead, cost.write)


class CostMeter:
    """Measures saves, in seconds on a monotonic clock.

    Attributes:
        cost: The cost of a save; None until one has been measured.
        slowest: The longest save so far, from snapshot to disk; None before the first.
        latest: The last batch at which nothing was being written.
    """

    def __init__(self) -> None:
        self.cost: Cost | None = None
        self.slowest: float | None = None
        self.write = 0.0  # seconds that the last write took, set by its thread
        self._pace: float | None = None  # seconds a batch, with nothing being written
        self._free: tuple[float, Progress] | None = None  # nothing is written since
        self.latest: tuple[float, Progress] | None = None
        self._writing: tuple[float, Progress, float] | None = None
        self._costs: deque[float] = deque(maxlen=_KEPT)
        self._writes: deque[float] = deque(maxlen=_KEPT)

    def batch(self, now: float, progress: Progress, *, busy: bool) -> None:
        """A batch or an epoch is done; ``busy`` while a save is being written."""
        if busy:
            return
        if self._writing is not None:
            self._written(now, progress, *self._writing)
            self._writing = None
        if self._free is None or self._free[1].epoch != progress.epoch:
            self._note_pace()
            self._free = (now, progress)
        self.latest = (now, progress)

    def saved(self, now: float, progress: Progress, stall: float) -> None:
        """A snapshot was taken, and will be written.

        Args:
            now: When training continues.
            progress: Where it is.
            stall: How long it waited.
        """
        self._note_pace()
        self._free, self._writing = None, (now, progress, stall)

    def _note_pace(self) -> None:
        if self._free is None or self.latest is None:
            return
        (since, first), (until, last) = self._free, self.latest
        if last.epoch == first.epoch and last.step > first.step:
            self._pace = (until - since) / (last.step - first.step)

    def _written(
        self, now: float, progress: Progress, since: float, at: Progress, stall: float
    ) -> None:
        lost = self.write  # at most; the pace may say less
        if self._pace is not None and progress.epoch == at.epoch:
            usual = self._pace * (progress.step - at.step)
            lost = min(lost, max(0.0, now - since - usual))
        self._costs.append(stall + lost)
        self._writes.append(self.write)
        self.cost = Cost(statistics.median(self._costs), max(self._writes))
        self.slowest = max(stall + self.write, self.slowest or 0.0)
