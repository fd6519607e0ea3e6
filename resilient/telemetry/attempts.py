"""The attempts of a run, by the events and signs of life that they left.

What a supervisor wrote stands beside them: it starts attempts, and says how they ended.
"""

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resilient.errors import printable
from resilient.serialization.schema import from_json
from resilient.storage.layout import HEARTBEAT
from resilient.telemetry import heartbeat
from resilient.telemetry.events import KILLED, Event, read_events
from resilient.telemetry.heartbeat import Beat

# How the lines look that say that an attempt began ("started over", too) or ended.
_BEGINS_OR_ENDS = ['"started', '"ended"', '"preempted"', '"failed"', '"diverged"']
_TEXT = 100  # characters of an error's name that are shown


@dataclass(frozen=True)
class RunLog:
    """What is recorded of a run since it was last started over.

    Attributes:
        attempts: The events of each attempt, oldest first; "started" is the first.
        others: Events of no attempt, each with the number of attempts begun before it.
        beats: The attempts' last signs of life, by attempt, as far as they are known.
        beat: The last sign of life of all.
    """

    attempts: list[list[Event]]
    others: list[tuple[int, Event]]
    beats: dict[str, Beat]
    beat: Beat | None


def read_log(
    directory: str | os.PathLike[str], process: int = 0, having: Collection[str] = ()
) -> RunLog:
    """What a process recorded in a checkpoint directory; empty where nothing is.

    The arguments are those of ``read_events``.
    """
    attempts: dict[str, list[Event]] = {}
    others: list[tuple[int, Event]] = []
    beat = heartbeat.read(Path(directory) / HEARTBEAT)
    beats = [beat]
    for each in read_events(directory, process, having=having):
        event = from_json(Event, each)
        if event.event == "started":
            attempts.setdefault(event.attempt, [])
            beats.append(event.previous)
        if event.attempt not in attempts:
            others.append((len(attempts), event))
            continue
        attempts[event.attempt].append(event)
        if event.event == "started over":
            attempts = {event.attempt: attempts[event.attempt]}
            others.clear()
    by_attempt = {each.attempt: each for each in beats if each is not None}
    return RunLog(list(attempts.values()), others, by_attempt, beat)


def read_attempts(directory: str | os.PathLike[str], process: int = 0) -> RunLog:
    """Read how a process's attempts at a run began and ended, and nothing else."""
    return read_log(directory, process, _BEGINS_OR_ENDS)


def attempt_starts(log: RunLog) -> list[dict[str, Any]]:
    """Host, pid and start (Unix seconds) of each attempt."""
    begun = (events[0] for events in log.attempts)
    return [{"host": x.host, "pid": x.pid, "started": x.time} for x in begun]


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


def last_attempt(log: RunLog) -> LastAttempt | None:
    """The last recorded attempt; None if there is none.

    Args:
        log: Read before this attempt recorded anything.
    """
    if not log.attempts:
        return None
    events = log.attempts[-1]
    beat = log.beats.get(events[0].attempt)
    step = None if beat is None else beat.step
    for last in reversed(events):
        if last.ends_attempt:
            name = printable((last.error or "").rpartition(".")[2][:_TEXT])
            how = "was asked to stop" if last.event == "preempted" else last.event
            how += f" ({name})" if name else ""
            at = step if last.step is None else last.step
            return LastAttempt(how, last.time, at, certain=True)
    when = events[0].time if beat is None else max(events[0].time, beat.time)
    return LastAttempt(f"was {KILLED}", when, step, certain=False)
