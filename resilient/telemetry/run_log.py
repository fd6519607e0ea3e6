"""Sorts the events of a run by the attempt that they belong to.

What a supervisor wrote stands beside them: it starts attempts, and says how they ended.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

from resilient.storage.layout import HEARTBEAT
from resilient.telemetry import heartbeat
from resilient.telemetry.event import Event
from resilient.telemetry.events import read_by_schema
from resilient.telemetry.heartbeat import Beat


@dataclass
class RunLog:
    """What is recorded of a run since it was last started over.

    Attributes:
        attempts: The events of each attempt, oldest first; "started" is the first.
        signs: The attempts' last signs of life, by attempt, as far as they are known.
        others: Events of no attempt, each with the number of attempts begun before it.
        beat: The last sign of life of all.
    """

    attempts: list[list[Event]] = field(default_factory=list)
    signs: dict[str, Beat] = field(default_factory=dict)
    others: list[tuple[int, Event]] = field(default_factory=list)
    beat: Beat | None = None


def read_log(directory: str | os.PathLike[str]) -> RunLog:
    """What is recorded in a checkpoint directory; empty where nothing is."""
    attempts: dict[str, list[Event]] = {}
    beat = heartbeat.read(Path(directory) / HEARTBEAT)
    signs, others = [beat], list[tuple[int, Event]]()
    for event in read_by_schema(directory):
        if event.event == "started":
            attempts.setdefault(event.attempt, [])
            signs.append(event.previous)
        if event.attempt not in attempts:
            others.append((len(attempts), event))
            continue
        attempts[event.attempt].append(event)
        if event.event == "started over":
            attempts = {event.attempt: attempts[event.attempt]}
            others.clear()
    by_attempt = {sign.attempt: sign for sign in signs if sign}
    return RunLog(list(attempts.values()), by_attempt, others, beat)
