"""Finds how the previous attempt ended, by its last sign of life and its last event."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resilient.errors import printable
from resilient.storage.layout import HEARTBEAT
from resilient.telemetry import heartbeat
from resilient.telemetry.events import read_events

_LAST_WORDS = {
    "ended": "ended",
    "preempted": "was asked to stop",
    "failed": "failed",
    "diverged": "diverged",
}
_TEXT = 100  # characters of an error's name that are shown


@dataclass(frozen=True)
class LastAttempt:
    """The previous attempt.

    Attributes:
        how: How it ended.
        time: When it gave its last sign or event, in Unix seconds.
        step: Where training was; None if unknown.
        certain: Whether it reported this itself, and so did nothing afterwards.
    """

    how: str
    time: float
    step: int | None
    certain: bool


def last_attempt(directory: Path) -> LastAttempt | None:
    """The last recorded attempt; None if there is none.

    Call it before this attempt records anything.
    """
    last: dict[str, Any] | None = None
    started: dict[str, Any] | None = None
    words = [f'"{event}"' for event in ("started", *_LAST_WORDS)]
    for event in read_events(directory, having=words, newest_first=True):
        if event["event"] == "started":
            started = event
            break
        if event["event"] == "diverged" and event.get("action") == "rollback":
            continue
        if last is None and event["event"] in _LAST_WORDS:
            last = event
    if started is None:
        return None
    sign = heartbeat.read(directory / HEARTBEAT)
    if sign is not None and sign.attempt != started["attempt"]:
        sign = None
    step = None if sign is None else sign.step
    if last is None:
        when = started["time"] if sign is None else max(started["time"], sign.time)
        return LastAttempt("was killed or died", when, step, certain=False)
    how = _LAST_WORDS[last["event"]]
    if error := last.get("error"):
        name = error.rpartition(".")[2]
        how += f" ({printable(name[:_TEXT])})"
    at = last.get("step")
    return LastAttempt(how, last["time"], step if at is None else at, certain=True)
