"""What a report says, as the tables and lines that the terminal and the page share."""

import time
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from resilient.display import duration, metrics, size
from resilient.report.facts import RunFacts
from resilient.telemetry.events import KILLED


class Table(NamedTuple):
    """A table whose first column names its rows.

    Attributes:
        name: What it lists.
        columns: The names of the columns.
        rows: The cells.
    """

    name: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def utc(seconds: float) -> str:
    """A time in ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def parts(facts: RunFacts) -> Table:
    """Where the time went."""
    whole = facts.goodput.whole or 1.0
    rows = [
        (name, duration(seconds), f"{seconds / whole:.1%}")
        for name, seconds in facts.goodput.parts.items()
    ]
    return Table("parts", ("part", "time", "share"), rows)


def attempts(facts: RunFacts) -> Table:
    """A row for each attempt."""
    columns = (
        *("attempt", "started", "time", "from step", "repeated", "to step", "end"),
        "host",
    )
    rows = [
        (
            f"{number:,}",
            utc(each.started),
            duration(each.ended - each.started),
            f"{each.restored or 0:,}",
            _count(each.repeated),
            f"{each.step:,}",
            facts.end_of(each),
            each.host,
        )
        for number, each in enumerate(facts.goodput.attempts, 1)
    ]
    return Table("attempts", columns, rows)


def faults(facts: RunFacts) -> Table:
    """What went wrong."""
    rows = [
        (
            fault.kind,
            utc(fault.time),
            _count(fault.attempt),
            _count(fault.step),
            " ".join(fault.why.split()) or "not known",
        )
        for fault in facts.faults
    ]
    return Table("faults", ("fault", "at", "attempt", "step", "reason"), rows)


def lines(facts: RunFacts) -> list[str]:
    """Steps, metrics and the costs of saves, in words."""
    goodput, saves = facts.goodput, facts.saves
    # A killed process trained a little further than its last sign of life shows.
    exact = all(each.outcome != KILLED for each in goodput.attempts)
    lost = f"{'' if exact else 'at least '}{goodput.lost_steps:,}"
    found = [f"steps: {goodput.steps:,}, plus {lost} lost"]
    if facts.last_metrics:
        found.append(f"metrics: {metrics(facts.last_metrics)}")
    if saves:
        seconds = [each.seconds for each in saves]
        waited = sum(each.stall for each in saves)
        found.append(
            f"saves: {len(saves):,}, {size(saves[-1].nbytes or 0)} the last; written "
            f"in {median(seconds):.2f} s (longest {max(seconds):.2f} s), while "
            f"training waited {waited:.2f} s in all; {goodput.postponed:,} postponed"
        )
    return found


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"
