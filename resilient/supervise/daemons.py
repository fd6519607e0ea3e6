"""Ends processes that a finished training left running in sessions of their own.

Every process that training starts inherits the variable that names the heartbeat file,
in a directory that is new for each attempt. Linux lets us read that variable. On other
systems a daemon outlives its training, and so does one that was started without it.
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
    while (left := _given(signs)) and (waited := time.monotonic() - began) < 2 * _GRACE:
        if waited > _GRACE:
            killed = True
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL)
    return killed


def _given(signs: Path) -> list[int]:
    setting = os.fsencode(f"\0{VARIABLE}={signs}/")
    found = []
    for environment in _PROCESSES.glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it ended, or belongs to another user
            if setting in b"\0" + environment.read_bytes():
                found.append(int(environment.parent.name))
    return found
