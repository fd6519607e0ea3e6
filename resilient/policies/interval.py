"""How often to save, by what a save was measured to cost.

A save costs training time; a longer interval loses more work when the process is
killed. Young (1974) and Daly (2006) found the interval at which both together are
least: the square root of twice the cost times the mean time between failures. An
interval that would spend more than the overhead budget on saves is made longer.
"""

import math
from dataclasses import dataclass

# One save has to be made to measure it: so long after the first batch.
_FIRST = 5.0  # seconds


@dataclass(frozen=True)
class Cost:
    """What saves were measured to cost.

    Attributes:
        training: Seconds that one takes from the training: waiting for the snapshot,
            and slower batches while it is written.
        write: Seconds until one is on the disk; the next cannot begin before.
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
