"""Ends what a training left running in sessions of its own, when it is over.

Whatever a training starts inherits the variable that names its file for signs of life,
in a directory that is new for each attempt. Linux shows it. On other systems a daemon
outlives its training, and so does one that was started without the variable.
"""

import contextlib
import os
import signal
import time
from pathlib import Path

from resilient.telemetry.heartbeat import VARIABLE

_PROCESSES = Path("/proc")
_GRACE = 1.0  # seconds to end in good order, and then to be gone
_POLL = 0.02


def end_daemons(signs: Path) -> bool:
    """End processes with a file in this directory; whether any had to be killed."""
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
        with contextlib.suppress(OSError):  # it ended, or is another user's
            if setting in b"\0" + environment.read_bytes():
                found.append(int(environment.parent.name))
    return found
