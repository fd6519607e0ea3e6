"""What went wrong in a run, and why, from its own and its supervisor's events."""

from collections.abc import Sequence
from dataclasses import dataclass

from resilient.telemetry.event import Event
from resilient.telemetry.goodput import AttemptReport
from resilient.telemetry.run_log import SAID, RunLog

_NOT_FAULTS = ("ended", "unknown")
_OF_SUPERVISOR = ("exited", "gave up")
_LONGEST = 300  # characters in a reason


@dataclass(frozen=True)
class Fault:
    """Something that went wrong.

    Attributes:
        time: The time, in Unix seconds.
        attempt: The attempt's number, from 1; None if no attempt locked the directory.
        step: The step that training had reached, if known.
        kind: What happened, in a word or two.
        why: The reason; empty if unknown.
    """

    time: float
    attempt: int | None
    step: int | None
    kind: str
    why: str


def faults(log: RunLog, attempts: Sequence[AttemptReport]) -> list[Fault]:
    """Everything that went wrong, oldest first."""
    exits, found = _exits(log.others)
    for number, (events, report) in enumerate(
        zip(log.faults, attempts, strict=True), 1
    ):
        found += (
            _fault(each, number, each.event, getattr(each, SAID[each.event]))
            for each in events
            if not each.is_last_word
        )
        seen = exits.get(number)
        if report.outcome not in _NOT_FAULTS:
            found.append(_end(report, number, events, seen))
        elif seen is not None and seen.kind != "finished":
            found.append(_fault(seen, number, seen.kind, seen.why))
    return sorted(found, key=lambda fault: fault.time)


def _exits(
    others: Sequence[tuple[int, Event]],
) -> tuple[dict[int, Event], list[Fault]]:
    """How attempts ended, by number from 1, and the faults outside any attempt."""
    found: dict[int, Event] = {}
    of_none: list[Fault] = []
    for number, event in others:
        if event.event == "exited" and number and number not in found:
            found[number] = event
        elif event.event in _OF_SUPERVISOR and event.kind != "finished":
            kind = event.kind if event.event == "exited" else event.event
            of_none.append(_fault(event, None, kind, event.why))
    return found, of_none


def _end(
    report: AttemptReport, number: int, events: Sequence[Event], seen: Event | None
) -> Fault:
    """The fault that ended an attempt before the end of the run."""
    kind, why = str(report.outcome), _last_words(events)
    if seen is not None and seen.kind not in (None, "finished"):
        kind, why = str(seen.kind), seen.why or why
    return Fault(report.ended, number, report.step, kind, (why or "")[:_LONGEST])


def _last_words(events: Sequence[Event]) -> str | None:
    last = next((each for each in reversed(events) if each.is_last_word), None)
    if last is None:
        return None
    if last.event == "failed":
        return f"{last.error}: {last.message}" if last.message else last.error
    return last.reason or last.why


def _fault(
    event: Event, number: int | None, kind: str | None, why: str | None
) -> Fault:
    return Fault(
        event.time, number, event.step, kind or event.event, (why or "")[:_LONGEST]
    )
