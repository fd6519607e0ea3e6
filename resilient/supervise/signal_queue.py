"""Queues signals for the loop that waits for them.

A signal ends the wait at once, and so does the death of a child; nothing happens inside
a signal handler.
"""

import contextlib
import os
import select
import signal
from typing import Any

# Each of them means that training should stop.
_NAMES = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP")  # Windows has the first two
FORWARDED = tuple(signal.Signals[name] for name in _NAMES if hasattr(signal, name))


class SignalQueue:
    """A context manager, for the main thread, that collects signals."""

    def __init__(self) -> None:
        self._restore = contextlib.ExitStack()
        self._read = -1

    def __enter__(self) -> "SignalQueue":
        # Python writes the number of each signal to this pipe.
        self._read, write = os.pipe()
        for descriptor in (self._read, write):
            self._restore.callback(os.close, descriptor)
            os.set_blocking(descriptor, False)
        before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self._restore.callback(signal.set_wakeup_fd, before)
        for signum in (*FORWARDED, signal.SIGCHLD):
            # Under nohup, hangups are to be ignored.
            ignored = signal.getsignal(signum) is signal.SIG_IGN
            if signum == signal.SIGHUP and ignored:
                continue
            handler: Any = signal.signal(signum, _do_nothing)
            self._restore.callback(signal.signal, signum, handler)
        return self

    def __exit__(self, *error: object) -> None:
        self._restore.close()

    def wait(self, seconds: float) -> list[int]:
        """Wait until a signal arrives, a child dies or the time is up.

        Returns:
            The signals that arrived, in order.
        """
        select.select([self._read], [], [], seconds)
        with contextlib.suppress(BlockingIOError):
            return [n for n in os.read(self._read, 4096) if n in FORWARDED]
        return []


def _do_nothing(*_: object) -> None:
    """A handler: without one, the signal would take effect instead of being queued."""
