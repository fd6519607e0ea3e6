"""Requests to stop training, and the signals that ask for it.

A request is only a flag: who asked, and how much time is left. Signal handlers and the
watching thread set it; training checks it where it can act on it. Nothing here stops
anything.

A signal handler may run between any two instructions, so it only asks. Previous
handlers are called when fit is about to end, after the save, and are restored. Data
workers forked meanwhile get the previous handlers, except that they ignore SIGINT,
which Ctrl-C sends to them too: otherwise they would be gone before the save.
"""

import contextlib
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from resilient.display import in_ipython
from resilient.errors import (
    CellStopped,
    Interrupted,
    Preempted,
    TrainingStopped,
    message,
    require_number,
)
from resilient.preemption.clouds import Probe
from resilient.progress import Progress

logger = logging.getLogger(__name__)

# SIGTERM: schedulers and clouds. SIGINT: Ctrl-C. SIGUSR1: SLURM, if a job asks for it;
# Windows has none.
_NAMES = ("SIGTERM", "SIGINT", "SIGUSR1")
SIGNALS = tuple(signal.Signals[n] for n in _NAMES if hasattr(signal, n))
_NOT_HANDLED = {getattr(signal, name, None) for name in ("SIGKILL", "SIGSTOP")}

STOP_FILE = "stop file"  # the reason if somebody touched it
RESERVE = 1.0  # seconds of a grace period that are kept for stopping


@dataclass(frozen=True)
class Preemption:
    """How training can be asked to save and stop.

    Attributes:
        signals: Signals that ask it to save and stop. A second SIGINT stops at once.
            Signals that the process ignores stay ignored. Signals reach only training
            in the main thread.
        grace_period: Seconds between a request and the end of the process. The last
            second is reserved for stopping: a save that would run into it is not
            started. SIGINT and the file ``stop`` set no deadline.
        notices: Functions that ask a cloud provider whether it is about to reclaim this
            machine, such as ``resilient.clouds.gce()``. They return None or a string. A
            background thread calls them every 5 seconds.

    Raises:
        TypeError: An attribute has the wrong type.
        ValueError: A signal that no process can handle, or a period that is not
            positive.
    """

    signals: Iterable[signal.Signals] = SIGNALS
    grace_period: float = 30.0
    notices: Iterable[Probe] = ()

    def __post_init__(self) -> None:
        period = require_number(self.grace_period, "Preemption(grace_period=...)")
        todo = "Use members of signal.Signals, such as (signal.SIGTERM,)."
        signals = _each_once(self.signals, "signals", _is_integer, todo)
        unusable = set(signals) - (signal.valid_signals() - _NOT_HANDLED)
        if unusable:
            what = "Preemption(signals=...) needs signals that a process can handle."
            raise ValueError(message(what, received=unusable, hint=todo))
        todo = "Use functions, such as (resilient.clouds.aws(),), with the parentheses."
        notices = _each_once(self.notices, "notices", callable, todo)
        object.__setattr__(self, "signals", tuple(map(signal.Signals, signals)))
        object.__setattr__(self, "notices", notices)
        object.__setattr__(self, "grace_period", period)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _each_once(
    value: object, name: str, fits: Callable[[object], bool], todo: str
) -> tuple[Any, ...]:
    """The members of a collection without duplicates; otherwise TypeError."""
    if isinstance(value, Iterable):
        each_once = tuple(dict.fromkeys(value))
        if all(map(fits, each_once)):
            return each_once
    raise TypeError(
        message(
            f"Preemption({name}=...) must be a collection of {name}.",
            received=repr(value),
            hint=todo,
        )
    )


def checked_preemption(value: object) -> Preemption | None:
    """``preemption`` if it is valid; otherwise TypeError."""
    if value is None or isinstance(value, Preemption):
        return value
    raise TypeError(
        message(
            "`preemption` must be a Preemption or None.",
            received=repr(value),
            hint="Pass resilient.Preemption(...), or None to watch neither signals "
            "nor notices.",
        )
    )


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
    received: list[signal.Signals] = []
    before: dict[signal.Signals, Any] = {}

    def handle(number: int, frame: FrameType | None) -> None:
        error = overdue()
        if error is not None:
            raise error
        which = signal.Signals(number)
        interactive = which is signal.SIGINT
        if interactive and which in received and callable(before[which]):
            before[which](number, frame)  # Python's own raises KeyboardInterrupt
        received.append(which)
        requests.ask_to_stop(which.name, math.inf if interactive else grace)

    for which in signals:
        handler = signal.getsignal(which)
        if handler not in (signal.SIG_IGN, None):
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
        for which in dict.fromkeys(received):
            handler = before[which]
            if callable(handler) and handler is not signal.default_int_handler:
                handler(which, None)


def _restore_in_child() -> None:
    for which, handler in _replaced.items():
        ignored = which is signal.SIGINT
        signal.signal(which, signal.SIG_IGN if ignored else handler)
    _replaced.clear()


if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=_restore_in_child)


def wake_main_thread(signals: Iterable[signal.Signals]) -> None:
    """Make the handler run, even while the main thread waits; Windows cannot."""
    main = threading.main_thread().ident
    handled = [which for which in signals if which in _replaced]
    if handled and main is not None and hasattr(signal, "pthread_kill"):
        signal.pthread_kill(main, handled[0])
