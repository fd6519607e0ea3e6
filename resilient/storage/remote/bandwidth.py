"""Throttles uploads, so that training gets its share of the network."""

import threading
import time


class Bandwidth:
    """A rate limit that all upload threads share.

    Args:
        rate: Bytes per second; None for no limit.
        abandoned: Ends each wait.
    """

    def __init__(self, rate: float | None, abandoned: threading.Event) -> None:
        self._rate, self._abandoned = rate, abandoned
        self._lock, self._free = threading.Lock(), 0.0

    def take(self, nbytes: int) -> None:
        """Wait until this many bytes may be sent."""
        if self._rate is None:
            return
        with self._lock:
            begin = max(self._free, time.monotonic())
            self._free = begin + nbytes / self._rate
        self._abandoned.wait(max(0.0, begin - time.monotonic()))
