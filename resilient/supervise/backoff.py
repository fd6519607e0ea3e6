"""How long to wait before a restart: twice as long each time, and never quite the same.

The jitter is a full one, between nothing and the whole delay, so that many jobs that
were killed together do not come back together.
"""

from dataclasses import dataclass

_FACTOR = 2.0
_MANY = 64  # doublings; more would overflow, and every limit is reached long before


@dataclass(frozen=True)
class Backoff:
    """Delays that grow with failures in a row.

    Attributes:
        base: Longest delay after the first failure, seconds.
        longest: No delay is longer than this, seconds.
    """

    base: float = 1.0
    longest: float = 300.0

    def delay(self, failures: int, chance: float) -> float:
        """Seconds to wait.

        Args:
            failures: Failures in a row without progress before this one.
            chance: A random number from 0 to 1.
        """
        return chance * min(self.longest, self.base * _FACTOR ** min(failures, _MANY))
