"""Requests to stop training, and the signals that ask for it.

A request is only a flag: who asked, and how much time is left. Signal handlers and the
watching thread set it; training checks it where it can act on it. Nothing here stops
anything.

A signal handler may run between any two instructions, so it only asks. Previous
handlers are called when fit is about to end, after the save, and are restored. Data
workers forked meanwhile get the previous handlers, except that they ignore SIGINT,
which Ctrl-C sends to them too: otherwise they would be gone before the save.
"""

import _thread
import contextlib
import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from resilient.display import in_ipython
from resilient.errors import CellStopped, Interrupted, Preempted, TrainingStopped
from resilient.forked import in_forked_child
from resilient.progress import Progress

logger = logging.getLogger(__name__)

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


# What to restore in a forked child: the previous handlers, by signal.
_replaced: dict[signal.Signals, Any] = {}


@contextlib.contextmanager
def listening(
    signals: Iterable[signal.Signals],
    requests: Requests,
    grace: float,
    overdue: Callable[[], BaseException | None],
) -> Iterator[None]:
    """Let these signals ask for a stop.

    Args:
        signals: Which signals; ignored ones, and those whose handler Python cannot
            restore, are left alone.
        requests: Where to ask.
        grace: Seconds until the process is killed; SIGINT sets no deadline.
        overdue: What to raise from a handler when training can no longer be waited for;
            None until then.
    """
    if threading.current_thread() is not threading.main_thread():
        logger.info(
            "Signals are not watched, because fit does not run in the main thread."
        )
        yield
        return
    received: dict[signal.Signals, int] = {}
    before: dict[signal.Signals, Any] = {}

    def handle(number: int, frame: FrameType | None) -> None:
        error = overdue()
        if error is not None:
            raise error
        which = signal.Signals(number)
        received[which] = received.get(which, 0) + 1
        if which is signal.SIGINT and received[which] > 1 and callable(before[which]):
            before[which](number, frame)  # Python's own raises KeyboardInterrupt
        interactive = which is signal.SIGINT
        requests.ask_to_stop(which.name, math.inf if interactive else grace)

    for which in signals:
        handler = signal.getsignal(which)
        if handler in (signal.SIG_IGN, None):
            logger.info(
                "%s is not watched, because this process ignores it.", which.name
            )
            continue
        before[which] = handler
        signal.signal(which, handle)
    outer = dict(_replaced)
    _replaced.update({which: before[which] for which in before if which not in outer})
    try:
        yield
    finally:
        _replaced.clear()
        _replaced.update(outer)
        for which, handler in before.items():
            signal.signal(which, handler)
        for which in received:
            handler = before[which]
            if callable(handler) and handler is not signal.default_int_handler:
                handler(which, None)


@in_forked_child
def _restore_in_child() -> None:
    for which, handler in _replaced.items():
        ignored = which is signal.SIGINT
        signal.signal(which, signal.SIG_IGN if ignored else handler)
    _replaced.clear()


def wake_main_thread(signals: Iterable[signal.Signals]) -> None:
    """Make the handler run, even while the main thread waits for something."""
    for which in signals:
        if which in _replaced:
            main = threading.main_thread().ident
            assert main is not None
            if hasattr(signal, "pthread_kill"):
                signal.pthread_kill(main, which)
            else:  # Windows: the main thread's wait goes on
                _thread.interrupt_main(which)
            return
