"""Says in words how the previous attempt ended.

Its last sign of life and its last event are read by their schemas and shown as text.
"""

import time
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
_UNITS = (("d", 86_400), ("h", 3600), ("min", 60))
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

    def told(self, resumed: int, now: float | None = None) -> str:
        """What somebody wants to know when the run resumes at a step."""
        seconds = max(0.0, (time.time() if now is None else now) - self.time)
        line = f"The last attempt {self.how} {_ago(seconds)}"
        if self.step is None or self.step < resumed:
            return line
        about = "" if self.certain else "about "
        line += f" at {about}step {self.step:,}"
        lost = self.step - resumed
        batches = "batch" if lost == 1 else "batches"
        return (
            f"{line}: {about}{lost:,} {batches} will be trained again" if lost else line
        )


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
    told = last.get("step")
    return LastAttempt(how, last["time"], step if told is None else told, certain=True)


def _ago(seconds: float) -> str:
    for unit, size in _UNITS:
        if seconds >= 2 * size:
            return f"{seconds // size:,.0f} {unit} ago"
    return f"{seconds:,.0f} s ago"
