"""The attempts on a directory, from its events and its heartbeat, with sound values.

Foreign events, and fields that are no times, steps or seconds, are left out: reports
are read when something has gone wrong, and must not fail for it.
"""

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from resilient.storage.layout import HEARTBEAT
from resilient.telemetry import heartbeat
from resilient.telemetry.events import read_events

_YEAR_10000 = 253402300800.0  # later than what a clock shows and a datetime holds


class Pulse(NamedTuple):
    """The last sign of life of an attempt."""

    time: float
    phase: str
    step: int


class Event(NamedTuple):
    """One event of an attempt. What it lacks is None, or no seconds."""

    kind: str
    time: float
    step: int | None
    from_step: int | None
    seconds: float
    stall: float
    last_word: bool


class AttemptLog(NamedTuple):
    """One attempt: when it took the directory, and what happened from then on."""

    name: str
    host: str
    started: float
    happened: list[Event]
    sign: Pulse | None


def read_attempts(directory: str | os.PathLike[str]) -> list[AttemptLog]:
    """All attempts since the run was last started over, oldest first."""
    events: dict[str, list[Mapping[str, Any]]] = {}
    signs: dict[str, Pulse] = {}
    beat = heartbeat.read(Path(directory) / HEARTBEAT)
    if beat is not None:
        _add_sign(signs, asdict(beat))
    for event in read_events(directory):
        name, when = event.get("attempt"), _number(event.get("time"))
        if not isinstance(name, str) or when is None:
            continue
        events.setdefault(name, []).append(event)
        if event.get("event") == "started over":
            events = {name: events[name]}
        if event.get("event") == "started":
            _add_sign(signs, event.get("previous"))
    attempts = [
        _attempt(name, found, signs.get(name)) for name, found in events.items()
    ]
    return [attempt for attempt in attempts if attempt is not None]


def _attempt(
    name: str, events: list[Mapping[str, Any]], sign: Pulse | None
) -> AttemptLog | None:
    started = [e for e in events if e.get("event") == "started"]
    if not started:  # a supervisor's, or nobody's
        return None
    host, when = started[0].get("host"), _number(started[0].get("time"))
    return AttemptLog(
        name=name,
        host=host if isinstance(host, str) else "",
        started=when or 0.0,
        happened=[_happened(event) for event in events],
        sign=sign,
    )


def _happened(event: Mapping[str, Any]) -> Event:
    kind = str(event.get("event"))
    last = kind in ("ended", "preempted", "failed") or (
        kind == "diverged" and event.get("action") != "rollback"
    )
    return Event(
        kind=kind,
        time=_number(event.get("time")) or 0.0,
        step=_whole(event.get("step")),
        from_step=_whole(event.get("from_step")),
        seconds=_number(event.get("seconds")) or 0.0,
        stall=_number(event.get("stall")) or 0.0,
        last_word=last,
    )


def _add_sign(signs: dict[str, Pulse], found: object) -> None:
    """Keep an attempt's sign; ``previous`` replaces a heartbeat, which is older."""
    if not isinstance(found, Mapping) or not isinstance(found.get("attempt"), str):
        return
    when, step = _number(found.get("time")), _whole(found.get("step"))
    if when is not None:
        signs[found["attempt"]] = Pulse(when, str(found.get("phase")), step or 0)


def _number(value: object) -> float | None:
    """Seconds, of a clock or of a wait: finite and not negative."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < _YEAR_10000 else None


def _whole(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value < _YEAR_10000 else None
