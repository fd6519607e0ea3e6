"""Gathers what an attempt left behind in its checkpoint directory."""

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from resilient.storage import layout
from resilient.telemetry.events import read_events
from resilient.telemetry.heartbeat import Beat

_SLACK = 1.0  # seconds by which a process may seem to act before it was started


def events_of(
    directory: Path | None,
    beats: Iterable[Beat | None],
    pids: set[int],
    since: float,
    files: int = 1,
) -> list[dict[str, Any]]:
    """What processes wrote to ``events.jsonl``, and to those of the other processes.

    Args:
        directory: The checkpoint directory; None if it is not known.
        beats: Their last signs of life, which tell the attempt's name.
        pids: The processes: some fail before their first sign.
        since: When they were started, Unix seconds: in a container each attempt may
            have the process id of the one before.
        files: How many processes may have a file of events.
    """
    if directory is None:
        return []
    known = [beat for beat in beats if beat is not None]
    attempts = {beat.attempt for beat in known}
    pids = pids | {beat.pid for beat in known}
    return [
        event
        for process in range(files)
        for event in read_events(directory, process)
        if event.get("attempt") in attempts
        or (event.get("pid") in pids and event.get("time", 0) >= since - _SLACK)
    ]


def committed(directory: Path | None) -> list[int]:
    """Steps of the checkpoints that are there; none where nothing can be read."""
    if directory is not None:
        with contextlib.suppress(OSError):
            return layout.committed_steps(directory)
    return []
