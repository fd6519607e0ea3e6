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
from resilient.telemetry.packed import Packed

# Events that say what went wrong without ending an attempt, and the field with why.
SAID = {
    "save failed": "error",
    "prune failed": "error",
    "not uploaded": "error",
    "fell back": "reason",
    "diverged": "why",
    "not repeated": "why",
}


@dataclass
class RunLog:
    """What is recorded of a run since it was last started over.

    Attributes:
        attempts: The events of each attempt, oldest first; "started" is the first.
        faults: Those of each attempt that say what went wrong or how it ended.
        signs: The attempts' last signs of life, by attempt, as far as they are known.
        others: Events of no attempt, each with the number of attempts begun before it.
        beat: The last sign of life of all.
    """

    attempts: list[Packed[Event]] = field(default_factory=list)
    faults: list[list[Event]] = field(default_factory=list)
    signs: dict[str, Beat] = field(default_factory=dict)
    others: list[tuple[int, Event]] = field(default_factory=list)
    beat: Beat | None = None


def read_log(directory: str | os.PathLike[str]) -> RunLog:
    """What is recorded in a checkpoint directory; empty where nothing is."""
    attempts: dict[str, Packed[Event]] = {}
    faults: dict[str, list[Event]] = {}
    newest = Packed(Event)
    beat = heartbeat.read(Path(directory) / HEARTBEAT)
    signs, others = [beat], list[tuple[int, Event]]()
    for event in read_by_schema(directory):
        if event.event == "started":
            newest.pack()
            newest = attempts.setdefault(event.attempt, Packed(Event))
            faults.setdefault(event.attempt, [])
            signs.append(event.previous)
        if event.attempt not in attempts:
            others.append((len(attempts), event))
            continue
        attempts[event.attempt].append(event)
        if event.event in SAID or event.is_last_word:
            faults[event.attempt].append(event)
        if event.event == "started over":
            attempts = {event.attempt: attempts[event.attempt]}
            others.clear()
    by_attempt = {sign.attempt: sign for sign in signs if sign}
    wrong = [faults[attempt] for attempt in attempts]
    return RunLog(list(attempts.values()), wrong, by_attempt, others, beat)
