"""The report on a run, and what computes it. See the package for what it means."""

import math
import os
from dataclasses import asdict, dataclass
from typing import Any

from resilient.telemetry.goodput.accounting import Accounting, Outcome, TimeSpent
from resilient.telemetry.goodput.attempts import read_attempts
from resilient.telemetry.goodput.ledger import Ledger


@dataclass(frozen=True)
class AttemptReport:
    """One process life.

    Attributes:
        attempt: Its name in the events.
        host: Where it ran; empty if unknown.
        started: When it took the directory, Unix seconds.
        ended: Its last sign of life, Unix seconds.
        outcome: How it ended. "rolled back": another process goes on. "died": without
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


@dataclass(frozen=True)
class Goodput:
    """Where the time and the steps of a run went; times in seconds.

    Attributes:
        productive: Training (with validation and callbacks) that survived.
        saving: Training waited for a save.
        starting: From the start of a fit to the end of its first batch.
        restoring: Within both: reading a checkpoint and restoring it.
        replaying: Within both: getting data back to its position.
        lost: Training that was gone back over.
        down: Between the last sign of an attempt and the start of the next one.
        steps: Batches trained that survived: where the run is.
        lost_steps: Batches trained that were gone back over.
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
    attempts: tuple[AttemptReport, ...]

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
        """All of it, as JSON has it."""
        return {
            "goodput": self.share,
            "seconds": {"whole": self.whole, **self.parts},
            "steps": {
                "trained": self.steps + self.lost_steps,
                "lost": self.lost_steps,
                "surviving": self.steps,
            },
            "attempts": [asdict(attempt) for attempt in self.attempts],
        }


def goodput(directory: str | os.PathLike[str]) -> Goodput:
    """Where the time of the run in a checkpoint directory went.

    A run that was started over counts from there. All is zero where nothing is known.
    """
    ledger, spent, down = Ledger(), TimeSpent(), 0.0
    reports: list[AttemptReport] = []
    attempts = read_attempts(directory)
    starts = [attempt.started for attempt in attempts[1:]] + [math.inf]
    for attempt, until in zip(attempts, starts, strict=False):
        if reports and reports[-1].outcome != "ended":
            down += max(0.0, attempt.started - reports[-1].ended)
        walk = Accounting(attempt, ledger, spent)
        walk.go(until)
        reports.append(
            AttemptReport(
                attempt=attempt.name,
                host=attempt.host,
                started=attempt.started,
                ended=walk.now,
                outcome=walk.outcome or ("died" if math.isfinite(until) else "unknown"),
                restored=walk.restored,
                step=ledger.step,
            )
        )
    return Goodput(
        **asdict(spent),
        productive=ledger.productive,
        lost=ledger.lost,
        down=down,
        steps=ledger.step,
        lost_steps=ledger.lost_steps,
        attempts=tuple(reports),
    )
