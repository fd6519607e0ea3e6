"""Where a run's time went, over all attempts: productive, lost, or neither.

It is computed from ``events.jsonl`` and the last heartbeat in a checkpoint directory,
which are only read. Whatever is not an event is skipped: people read reports when
something has gone wrong, so a report must not fail because of it.

An attempt is split at its events. From "started" to "training" (the first batch is
done) it is starting, except for the seconds that "restored" and "replayed" report. From
then on it trains, validates and runs callbacks, except while saves stall it. That time
is productive until a restore goes back over it: then everything after the save of the
restored step is lost.

Measured: when an attempt started and, unless it was killed, ended; its restores,
    replays and stalls. Imports are not seen: they happen before "started", and count as
    down.

Estimated:

* the moment of a saved step: that of "saved", minus the duration of the write;
* a stall is deducted from the time after the saved step;
* an attempt that reported no end died at its last sign of life: the heartbeat, which is
    rewritten about twice a second while batches complete, or else its last event. Later
    work, such as the batch in progress, is not seen, and its time counts as down;
* the loss, if the save of the restored step is not in the events: the seconds between
    the known moments before and after it are divided in proportion to steps;
* if the clock goes back, no time passes until it catches up.

Work that a dead run will have to repeat counts as productive until the run resumes. An
attempt that ended or was preempted waits for its last write, which counts as saving.
The time between a fit that ended and the next one belongs to no part, nor to the whole.
"""

import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from resilient.display import duration, table
from resilient.telemetry.accounting import Accounting, Ledger, Outcome, Span
from resilient.telemetry.run_log import RunLog, read_log


@dataclass(frozen=True)
class AttemptReport:
    """One attempt of a process.

    Attributes:
        attempt: Its identifier in the events.
        host: Where it ran; empty if unknown.
        started: When it locked the directory, in Unix seconds.
        ended: Its last sign of life, in Unix seconds.
        outcome: How it ended. "rolled back": another process continues. "died": without
            reporting an end. "unknown": the last attempt, which may still be running.
        restored: The step of the checkpoint that it resumed from, if any.
        repeated: Batches after it that were trained again with the same bits; None: not
            compared.
        step: Where the run was when it ended.
    """

    attempt: str
    host: str
    started: float
    ended: float
    outcome: Outcome
    restored: int | None
    repeated: int | None
    step: int


@dataclass(frozen=True, repr=False)
class Goodput:
    """Where the time and the steps of a run went; times are in seconds.

    Attributes:
        productive: Training (with validation and callbacks) that survived.
        saving: Training that waited for a save.
        starting: From the start of a fit to the end of its first batch.
        restoring: In either phase: reading a checkpoint and restoring it.
        replaying: In either phase: returning the data to its position.
        lost: Training that a restore discarded.
        down: From the last sign of life of an attempt to the start of the next.
        steps: Trained batches that survived: where the run is.
        lost_steps: Trained batches that a restore discarded.
        postponed: Saves delayed because the previous one was still being written.
        attempts: Each attempt, oldest first.
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
        """Total seconds: the sum of the parts."""
        return math.fsum(self.parts.values())

    @property
    def share(self) -> float:
        """The goodput: the productive share of the whole, from 0 to 1."""
        return min(1.0, self.productive / self.whole) if self.whole else 0.0

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON."""
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
    """Where the time of a checkpoint directory's run went.

    A run that was started over counts from that start. Without events, all is zero.
    """
    return account(read_log(directory))[0]


def account(log: RunLog) -> tuple[Goodput, Callable[[], list[Span]]]:
    """Where the time of a run went, and what lists the time spans behind it.

    Args:
        log: The records of the run.
    """
    ledger, downs = Ledger(), list[Span]()
    reports, postponed = list[AttemptReport](), 0
    starts = [events[0].time for events in log.attempts[1:]] + [math.inf]
    for events, until in zip(log.attempts, starts, strict=False):
        begin = events[0]
        ledger.attempt = len(reports)
        if reports and reports[-1].outcome != "ended":
            ended = reports[-1].ended
            span = Span(len(reports) - 1, "down", ended, max(ended, begin.time))
            downs.append(span)
        books = Accounting(begin.time, ledger)
        books.book(events, log.signs.get(begin.attempt), until)
        postponed += books.postponed
        silent: Outcome = "died" if math.isfinite(until) else "unknown"
        reports.append(
            AttemptReport(
                attempt=begin.attempt,
                host=begin.host,
                started=begin.time,
                ended=books.now,
                outcome=books.outcome or silent,
                restored=books.restored,
                repeated=books.repeated,
                step=ledger.step,
            )
        )
    found = Goodput(
        **ledger.spent,
        productive=ledger.productive,
        lost=ledger.lost,
        down=sum((span.end - span.begin for span in downs), 0.0),
        steps=ledger.step,
        lost_steps=ledger.lost_steps,
        postponed=postponed,
        attempts=tuple(reports),
    )
    return found, lambda: [
        *ledger.spans(),
        *(each for each in downs if each.end > each.begin),
    ]
