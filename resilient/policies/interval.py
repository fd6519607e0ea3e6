"""How often to save, given the measured cost of a save.

Saving often costs training time; saving rarely loses more work when the process is
killed. Young (1974) and Daly (2006) minimise the sum with an interval of the square
root of twice the cost times the mean time between failures. The interval is longer if
saves would otherwise exceed the overhead budget.
"""

import math
from dataclasses import dataclass

_FIRST = 5.0  # seconds after the first batch: measuring needs a save


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
