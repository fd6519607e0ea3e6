"""Signals, taken one by one by the loop that waits for them.

A signal that arrives while the loop waits ends the wait at once, and so does the death
of a child; nothing is done inside a signal handler.
"""

import contextlib
import os
import select
import signal
from collections import deque
from types import FrameType, TracebackType
from typing import Any

# Whoever sends one of these wants the training to stop.
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)


class SignalQueue:
    """A context manager, for the main thread, that collects signals."""

    def __init__(self) -> None:
        self._signals: deque[int] = deque()
        self._before: dict[int, Any] = {}
        self._wake: tuple[int, int] | None = None
        self._fd_before = -1

    def __enter__(self) -> "SignalQueue":
        read, write = os.pipe()
        os.set_blocking(read, False)
        os.set_blocking(write, False)
        self._wake = read, write
        self._fd_before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for signum in (*FORWARDED, signal.SIGCHLD):
            # Under nohup a hangup is meant for nobody.
            ignored = signal.getsignal(signum) is signal.SIG_IGN
            if signum == signal.SIGHUP and ignored:
                continue
            self._before[signum] = signal.signal(signum, self._take)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
        signal.set_wakeup_fd(self._fd_before)
        assert self._wake is not None
        for descriptor in self._wake:
            os.close(descriptor)

    def wait(self, seconds: float) -> list[int]:
        """Wait until a signal arrives, a child dies or the time is over.

        Returns:
            The signals that arrived, in their order.
        """
        assert self._wake is not None
        read = self._wake[0]
        if not self._signals:
            select.select([read], [], [], seconds)
        with contextlib.suppress(BlockingIOError):
            os.read(read, 4096)
        taken = []
        while self._signals:
            taken.append(self._signals.popleft())
        return taken

    def _take(self, signum: int, frame: FrameType | None) -> None:
        if signum != signal.SIGCHLD:
            self._signals.append(signum)
