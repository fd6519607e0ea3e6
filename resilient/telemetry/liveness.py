"""Whether a run is alive, as far as that shows from outside.

A process of this machine is looked for; of another machine only its silence is known.
"""

import os
import socket
import time
from typing import Literal

from resilient.telemetry.accounting import Outcome
from resilient.telemetry.heartbeat import Beat

State = Literal[
    "alive",
    "silent",
    "dead",
    "not known",
    "ended",
    "preempted",
    "failed",
    "diverged",
    "rolled back",
]

_FRESH = 5.0  # seconds; a sign is written about twice a second, while there are some
_SILENT = 60.0


def state_of(
    attempt: str, outcome: Outcome, beat: Beat | None, now: float | None = None
) -> State:
    """The state of a run.

    Args:
        attempt: Its last one.
        outcome: How that ended, as far as its events say.
        beat: The last sign of life in the directory.
        now: Unix seconds.
    """
    if outcome == "died":
        return "dead"
    if outcome != "unknown":
        return outcome
    if beat is None or beat.attempt != attempt:
        return "not known"
    silence = (time.time() if now is None else now) - beat.time
    if beat.host == socket.gethostname() and silence > _FRESH:
        return "alive" if _exists(beat.pid) else "dead"
    return "alive" if silence <= _SILENT else "silent"


def _exists(pid: int) -> bool:
    if os.name == "nt":
        return True  # asking there may end it
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # of another user
        return True
    return True
