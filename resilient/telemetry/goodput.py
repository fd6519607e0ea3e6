"""Where the time of a run went, over all its attempts: productive, lost, or neither.

It is computed from ``events.jsonl`` and the last heartbeat of a checkpoint directory,
which are read and never changed. What is no event is left out: reports are read when
something has gone wrong, and must not fail because of it.

An attempt is cut at its events. From "started" to "training" (the first batch is done)
it is starting, except for the seconds that "restored" and "replayed" report. From then
on it trains, validates and runs callbacks, except for the stalls of its saves. That
time is productive until a restore goes back over it: then what came after the save of
the restored step is lost.

Measured: when an attempt started and, unless it was killed, ended; its restores,
replays and stalls. Imports are not seen: they come before "started", and count as down.

Estimated:

* the moment of a saved step: that of "saved" less the seconds of the whole write;
* a stall is taken from the time after the step that was saved;
* an attempt without a last word died at its last sign of life: the heartbeat, which is
  rewritten about twice a second while batches are done, or else its last event. What it
  did after that, such as the batch it was in, is not seen, and its time counts as down;
* what was lost where the save of the restored step is not in the events: the seconds
  between the known moments before and after it are divided in proportion to steps;
* where a clock goes back, time stands still.

What a dead run will have to do again counts as productive until it is resumed. After
the last save of an attempt that ended or was preempted it waits for the write: that is
saving. After a fit that ended nothing is missing until somebody starts another one:
that wait belongs to no part, nor to the whole.
"""

import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from resilient.display import duration, table
from resilient.serialization.schema import from_json
from resilient.storage.layout import HEARTBEAT
from resilient.telemetry import heartbeat
from resilient.telemetry.accounting import Accounting, Ledger, Outcome
from resilient.telemetry.event import Event
from resilient.telemetry.events import read_events
from resilient.telemetry.heartbeat import Beat


@dataclass(frozen=True)
class AttemptReport:
    """One process life.

    Attributes:
        attempt: Its name in the events.
        host: Where it ran; empty if unknown.
        started: When it took the directory, Unix seconds.
        ended: Its last sign of life, Unix seconds.
        outcome: How it ended. "rolled back": another process continues. "died": without
            reporting. "unknown": the last one, which may still be running.
        restored: The step of the checkpoint that it began from, if it did.
        step: Where the run was at its end.
    """

    attempt: str
    host: str
    started: float
    ended: float
    outcome: Outcome
    restored: int | None
    step: int


@dataclass(frozen=True, repr=False)
class Goodput:
    """Where the time and the steps of a run went; times in seconds.

    Attributes:
        productive: Training (with validation and callbacks) that survived.
        saving: Training that waited for a save.
        starting: From the start of a fit to the end of its first batch.
        restoring: Within both: reading a checkpoint and restoring it.
        replaying: Within both: getting data back to its position.
        lost: Training that was gone back over.
        down: Between the last sign of life of an attempt and the start of the next one.
        steps: Batches trained that survived: where the run is.
        lost_steps: Batches trained that were gone back over.
        postponed: Saves that came later than they were due, because the previous one
            was still being written.
        attempts: Each process life, oldest first.
    """

    productive: float
    saving: float
    starting: float
    restoring: float
    replaying: float
    lost: float
    down: float
    steps: int
    lost_steps: int
    postponed: int
    attempts: tuple[AttemptReport, ...]

    def __repr__(self) -> str:
        return f"<Goodput {self._summary}>"

    def _repr_html_(self) -> str:
        rows = {
            name: f"{duration(seconds)} ({seconds / self.whole:.1%})"
            for name, seconds in self.parts.items()
            if seconds
        }
        return table(f"Goodput {self._summary}", rows)

    @property
    def _summary(self) -> str:
        attempts = f"{len(self.attempts):,} attempts"
        steps = f"{self.steps:,} steps, plus {self.lost_steps:,} lost"
        return f"{self.share:.1%} of {duration(self.whole)}: {steps}, {attempts}"

    @property
    def parts(self) -> dict[str, float]:
        """The parts of the whole, by name."""
        names = ("productive", "saving", "starting", "restoring", "replaying")
        return {name: getattr(self, name) for name in (*names, "lost", "down")}

    @property
    def whole(self) -> float:
        """Seconds in all: the sum of the parts."""
        return math.fsum(self.parts.values())

    @property
    def share(self) -> float:
        """The goodput: the productive share of the whole, from 0 to 1."""
        return min(1.0, self.productive / self.whole) if self.whole else 0.0

    def to_json(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {
            "goodput": self.share,
            "seconds": {"whole": self.whole, **self.parts},
            "steps": {
                "trained": self.steps + self.lost_steps,
                "lost": self.lost_steps,
                "surviving": self.steps,
            },
            "postponed_saves": self.postponed,
            "attempts": [asdict(attempt) for attempt in self.attempts],
        }


def goodput(directory: str | os.PathLike[str]) -> Goodput:
    """Where the time of the run in a checkpoint directory went.

    A run that was started over counts from there. Where nothing is known, all is zero.
    """
    ledger, down = Ledger(), 0.0
    reports: list[AttemptReport] = []
    attempts, signs = _read(directory)
    starts = [events[0].time for events in attempts[1:]] + [math.inf]
    for events, until in zip(attempts, starts, strict=False):
        begin = events[0]
        if reports and reports[-1].outcome != "ended":
            down += max(0.0, begin.time - reports[-1].ended)
        account = Accounting(begin.time, ledger)
        account.book(events, signs.get(begin.attempt), until)
        silent: Outcome = "died" if math.isfinite(until) else "unknown"
        reports.append(
            AttemptReport(
                attempt=begin.attempt,
                host=begin.host,
                started=begin.time,
                ended=account.now,
                outcome=account.outcome or silent,
                restored=account.restored,
                step=ledger.step,
            )
        )
    return Goodput(
        **ledger.spent,
        productive=ledger.productive,
        lost=ledger.lost,
        down=down,
        steps=ledger.step,
        lost_steps=ledger.lost_steps,
        postponed=sum(event.postponed for events in attempts for event in events),
        attempts=tuple(reports),
    )


def _read(
    directory: str | os.PathLike[str],
) -> tuple[list[list[Event]], dict[str, Beat]]:
    """The events of each attempt since the run was last started over, oldest first.

    Returns:
        The events, the first of which is "started"; and the attempts' last signs of
        life, as far as they are known.
    """
    attempts: dict[str, list[Event]] = {}
    signs = [heartbeat.read(Path(directory) / HEARTBEAT)]
    for found in read_events(directory):
        event = from_json(Event, found)
        if event.event == "started":
            attempts.setdefault(event.attempt, [])
            signs.append(event.previous)
        if event.attempt not in attempts:  # a supervisor's events, or foreign ones
            continue
        attempts[event.attempt].append(event)
        if event.event == "started over":
            attempts = {event.attempt: attempts[event.attempt]}
    return list(attempts.values()), {sign.attempt: sign for sign in signs if sign}
