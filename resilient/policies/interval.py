"""How often to save, given the measured cost of a save.

A save costs training time; a longer interval loses more work when the process is
killed. Young (1974) and Daly (2006) minimise the sum: the square root of twice the cost
times the mean time between failures. The interval is longer if saves would exceed the
overhead budget.
"""

import math
from dataclasses import dataclass

_FIRST = 5.0  # seconds after the first batch: a save has to be made to measure it


@dataclass(frozen=True)
class Cost:
    """The measured cost of a save, seconds.

    Attributes:
        training: Lost by the training, which waits for the snapshot, and whose batches
            are slower while it is written.
        write: Until it is on the disk; the next cannot begin before.
    """

    training: float
    write: float


@dataclass(frozen=True)
class Adaptive:
    """Save as often as the cost allows.

    Attributes:
        overhead: The share of the training time that saves may take.
        mtbf: Mean time between failures, seconds.
    """

    overhead: float
    mtbf: float

    def interval(self, cost: Cost | None) -> float:
        """Seconds between two saves; without a cost, until the first one."""
        if cost is None:
            return _FIRST
        young = math.sqrt(2 * cost.training * self.mtbf)
        return max(young, cost.training / self.overhead, cost.write)
