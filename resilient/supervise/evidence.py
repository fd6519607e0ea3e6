"""Gathers what an attempt left behind in its checkpoint directory."""

import contextlib
from pathlib import Path
from typing import Any

from resilient.storage import layout
from resilient.telemetry.events import read_events
from resilient.telemetry.heartbeat import Beat

_SLACK = 1.0  # seconds by which a process may seem to act before its start


def events_of(
    directory: Path | None, pid: int, beat: Beat | None, since: float, nproc: int
) -> list[dict[str, Any]]:
    """What a process wrote to one of the run's event files.

    Args:
        directory: The checkpoint directory; None if it is not known.
        pid: The process that we started; it may fail before its first heartbeat.
        beat: The last heartbeat, which names the attempt.
        since: When the process was started, in Unix seconds: in a container, every
            attempt may have the same process id.
        nproc: How many processes have an event file.
    """
    if directory is None:
        return []
    attempt = None if beat is None else beat.attempt
    pids = {pid} if beat is None else {pid, beat.pid}
    having = [str(pid) for pid in pids] + ([attempt] if attempt else [])
    return [
        event
        for process in range(nproc)
        for event in read_events(directory, process, having=having)
        if event["attempt"] == attempt
        or (event["pid"] in pids and event["time"] >= since - _SLACK)
    ]


def committed(directory: Path | None) -> list[int]:
    """Steps of the existing checkpoints; none if nothing can be read."""
    if directory is not None:
        with contextlib.suppress(OSError):
            return layout.committed_steps(directory)
    return []
