"""How training can be asked to stop: the user's choices, validated."""

import signal
from collections.abc import Iterable
from dataclasses import dataclass

from resilient.errors import message, require_number
from resilient.preemption.clouds import Probe

# SIGTERM: schedulers and clouds. SIGINT: Ctrl-C. SIGUSR1: SLURM, if a job asks for it;
# Windows has none.
_NAMES = ("SIGTERM", "SIGINT", "SIGUSR1")
SIGNALS = tuple(signal.Signals[n] for n in _NAMES if hasattr(signal, n))
_NOT_HANDLED = {getattr(signal, name, None) for name in ("SIGKILL", "SIGSTOP")}


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
        signals = (_signal(each) for each in _items(self.signals, "signals"))
        checked = tuple(dict.fromkeys(signals))
        notices = tuple(_probe(each) for each in _items(self.notices, "notices"))
        period = require_number(self.grace_period, "Preemption(grace_period=...)")
        object.__setattr__(self, "signals", checked)
        object.__setattr__(self, "notices", notices)
        object.__setattr__(self, "grace_period", period)


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


def _items(value: object, name: str) -> tuple[object, ...]:
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return tuple(value)
    todo = f"Pass a tuple, such as {name}=() for none."
    raise TypeError(
        message(
            f"Preemption({name}=...) must be a collection.", received=value, hint=todo
        )
    )


def _signal(value: object) -> signal.Signals:
    what = "Preemption(signals=...) needs signals that a process can handle."
    todo = "Use members of signal.Signals, such as signal.SIGTERM."
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(message(what, received=repr(value), hint=todo))
    if value not in signal.valid_signals() - _NOT_HANDLED:
        raise ValueError(message(what, received=repr(value), hint=todo))
    return signal.Signals(value)


def _probe(value: object) -> Probe:
    if not callable(value):
        what = "Preemption(notices=...) needs functions."
        todo = "Pass probes, such as resilient.clouds.aws() (with the parentheses)."
        raise TypeError(message(what, received=repr(value), hint=todo))
    return value
