"""Ends processes that a training started, and that run in sessions of their own.

Every process that training starts inherits its variables, such as the one that names
the heartbeat file, in a directory that is new for each attempt. Linux lets us read
them. On other systems a daemon outlives its training, and so does one that was started
without them.
"""

import contextlib
import os
import signal
import time
from pathlib import Path

from resilient.telemetry.heartbeat import VARIABLE

_PROCESSES = Path("/proc")
_GRACE = 1.0  # seconds to end in good order, and again to be gone
_POLL = 0.02


def end_daemons(signs: Path) -> bool:
    """End processes whose file is in this directory; whether any had to be killed."""
    began, killed = time.monotonic(), False
    given = f"{VARIABLE}={signs}/"
    while (left := _given(given)) and (waited := time.monotonic() - began) < 2 * _GRACE:
        if waited > _GRACE:
            killed = True
            _kill(left)
        time.sleep(_POLL)
    return killed


def kill_daemons(variable: str, value: str) -> None:
    """Kill every process with this value of a variable; return once they are gone."""
    until = time.monotonic() + 2 * _GRACE
    setting = f"{variable}={value}\0"
    while (left := _given(setting)) and time.monotonic() < until:
        _kill(left)
        time.sleep(_POLL)


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _given(setting: str) -> list[int]:
    wanted = os.fsencode(f"\0{setting}")
    found = []
    for environment in _PROCESSES.glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it ended, or belongs to another user
            if wanted in b"\0" + environment.read_bytes():
                found.append(int(environment.parent.name))
    return found
