"""Collects the facts for a report on one run, reading its directory once."""

import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from resilient.serialization.schema import strict
from resilient.telemetry.attempts import RunLog, read_log
from resilient.telemetry.events import KILLED, Event
from resilient.telemetry.goodput import AttemptReport, Goodput, account
from resilient.telemetry.heartbeat import Beat

# Events that say what went wrong without ending an attempt.
_WRONG = (
    *("save failed", "prune failed", "not uploaded", "fell back", "diverged"),
    "not repeated",
)
_LONGEST = 300  # characters in a reason
_FRESH = 5.0  # seconds; a sign is written about twice a second, while there are some
_SILENT = 60.0


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


@dataclass(frozen=True)
class RunFacts:
    """The facts about a run that a report shows.

    Attributes:
        name: The run's name or path.
        goodput: Where the run's time went.
        beat: The last heartbeat, if any.
        epoch: The number of epochs completed, if known.
        metrics: The steps and values of each metric, as they were logged, so that a
            step may occur twice; the loss first, and beside each its ``val_``.
        saves: The events of the saves, oldest first.
        faults: What went wrong, oldest first.
    """

    name: str
    goodput: Goodput
    beat: Beat | None
    epoch: int | None
    metrics: Mapping[str, Sequence[tuple[int, float]]]
    saves: Sequence[Event]
    faults: Sequence[Fault]

    @property
    def state(self) -> str:
        """How the run ended, or whether it is alive now."""
        last = self.goodput.attempts[-1]
        return state_of(last.attempt, last.outcome, self.beat, time.time())

    def end_of(self, attempt: AttemptReport) -> str:
        """How an attempt ended; of the last one, perhaps that it is alive."""
        return self.state if attempt.outcome == "unknown" else attempt.outcome

    @property
    def last_metrics(self) -> Mapping[str, float]:
        """The latest value of each metric."""
        return {name: points[-1][1] for name, points in self.metrics.items()}

    def to_json(self) -> dict[str, Any]:
        """Everything except individual logs and saves, for JSON."""
        return {
            "name": self.name,
            **self.goodput.to_json(),
            "state": self.state,
            "phase": None if self.beat is None else self.beat.phase,
            "epoch": self.epoch,
            "metrics": {name: strict(x) for name, x in self.last_metrics.items()},
            "saves": len(self.saves),
            "faults": [asdict(fault) for fault in self.faults],
        }


def read_facts(directory: Path, name: str = "") -> RunFacts | None:
    """The facts about a run; None if it has recorded no events.

    Args:
        directory: The run's directory.
        name: The name to show; if empty, the run's path.
    """
    log = read_log(directory)
    if not log.attempts:
        return None
    goodput, beat = account(log), log.beat
    events = [x for attempt in log.attempts for x in attempt if x.step is not None]
    logged = [each for each in events if each.event == "metrics"]
    epoch = logged[-1].epoch or 0 if logged else None
    return RunFacts(
        name=name or str(directory),
        goodput=goodput,
        beat=beat,
        epoch=epoch if beat is None else beat.epoch,
        metrics=_metrics(logged),
        saves=[each for each in events if each.event == "saved"],
        faults=sorted(_faults(log, goodput.attempts), key=lambda fault: fault.time),
    )


def metric_of(name: str) -> str:
    """The metric without ``val_``."""
    return name.removeprefix("val_")


def _metrics(logged: Sequence[Event]) -> Mapping[str, Sequence[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for event in logged:
        for name, value in event.logs.items():
            found.setdefault(name, []).append((event.step or 0, float(value)))
    order = sorted(found, key=lambda x: (metric_of(x) != "loss", metric_of(x), len(x)))
    return {name: found[name] for name in order}


def _faults(log: RunLog, attempts: Sequence[AttemptReport]) -> Iterator[Fault]:
    exits: dict[int, Event] = {}  # as a supervisor saw them, by the attempt's number
    for number, event in log.others:
        exited = event.event == "exited"
        if event.kind == "finished":
            continue
        if exited and number and number not in exits:
            exits[number] = event
        elif exited or event.event == "gave up":
            yield _fault(event, None, event.kind if exited else None)
    for number, report in enumerate(attempts, 1):
        last, seen = None, exits.get(number)
        for event in log.attempts[number - 1]:
            last = event if event.ends_attempt else last
            if event.event in _WRONG and not event.ends_attempt:
                yield _fault(event, number)
        if seen or report.outcome not in ("ended", "unknown"):
            kind = (seen and seen.kind) or report.outcome
            why = (seen and _why(seen)) or (last and _why(last)) or ""
            yield Fault(report.ended, number, report.step, kind, why)


def _fault(event: Event, number: int | None, kind: str | None = None) -> Fault:
    return Fault(event.time, number, event.step, kind or event.event, _why(event))


def _why(event: Event) -> str:
    why = event.reason or event.why or event.error or ""
    return (f"{why}: {event.message}" if event.message else why)[:_LONGEST]


def state_of(attempt: str, outcome: str, beat: Beat | None, now: float) -> str:
    """The state of a run: how it ended, or whether it is alive, as seen from outside.

    A process of this machine is looked for; of another machine only its silence is
    known.

    Args:
        attempt: Its last one.
        outcome: How that ended, as far as its events say.
        beat: The last sign of life in the directory.
        now: Unix seconds.
    """
    if outcome != "unknown":
        return outcome
    if beat is None or beat.attempt != attempt:
        return "not known"
    silence = now - beat.time
    if beat.host == socket.gethostname() and silence > _FRESH:
        return "alive" if _exists(beat.pid) else KILLED
    return "alive" if silence <= _SILENT else "silent"


def _exists(pid: int) -> bool:
    try:
        if os.name != "nt":  # where asking may end it
            os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)  # or of another user
    return True
