"""Collects the facts for a report on one run, reading its directory once."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from statistics import median
from typing import Any

from msgspec import Struct

from resilient.report.changes import Change, changes
from resilient.report.faults import Fault, faults
from resilient.serialization.schema import strict
from resilient.storage.store import Store
from resilient.telemetry.accounting import Span
from resilient.telemetry.goodput import Goodput, account
from resilient.telemetry.heartbeat import Beat
from resilient.telemetry.liveness import State, state_of
from resilient.telemetry.packed import Packed
from resilient.telemetry.run_log import RunLog, read_log


class Logged(Struct, frozen=True, gc=False):
    """Metrics at a step.

    Attributes:
        attempt: The attempt that logged them, from 0; -1 if unknown.
        step: The number of batches trained.
        epoch: The number of epochs completed.
        batch: Batches completed in the next epoch; 0 at the end of an epoch.
        metrics: The values, by metric name.
    """

    attempt: int
    step: int
    epoch: int
    batch: int
    metrics: Mapping[str, float]


class Saved(Struct, frozen=True, gc=False):
    """A committed checkpoint.

    Attributes:
        time: The time of the commit, in Unix seconds.
        step: The saved step.
        nbytes: The size in bytes.
        seconds: The duration of the write.
        stall: The seconds that training waited for it.
    """

    time: float
    step: int
    nbytes: int
    seconds: float
    stall: float


@dataclass(frozen=True)
class RunFacts:
    """The facts about a run that a report shows.

    Attributes:
        name: The run's name or path.
        goodput: Where the run's time went.
        spans: Lists the time spans behind the goodput.
        state: The run's liveness, such as "alive" or "dead".
        beat: The last heartbeat, if any.
        logged: The logged metrics, oldest first; a step may occur twice.
        saves: The saved checkpoints, oldest first.
        faults: What went wrong, oldest first.
        environment: The versions at the first start, by name.
        changes: The changes of environment between attempts.
    """

    name: str
    goodput: Goodput
    spans: Callable[[], list[Span]]
    state: State
    beat: Beat | None
    logged: Sequence[Logged]
    saves: Sequence[Saved]
    faults: list[Fault]
    environment: Mapping[str, str]
    changes: list[Change]

    @property
    def epoch(self) -> int | None:
        """The number of epochs completed."""
        found = self.logged[-1].epoch if self.logged else None
        return self.beat.epoch if self.beat is not None else found

    @cached_property
    def last_metrics(self) -> Mapping[str, float]:
        """The latest value of each metric."""
        return {name: x for each in self.logged for name, x in each.metrics.items()}

    def save_costs(self) -> dict[str, Any]:
        """The durations (seconds) and sizes (bytes) of the saves, for JSON."""
        if not self.saves:
            return {"count": 0}
        seconds = [each.seconds for each in self.saves]
        sizes = [each.nbytes for each in self.saves]
        return {
            "count": len(self.saves),
            "last": self.saves[-1].time,
            "seconds": {"median": median(seconds), "longest": max(seconds)},
            "stalls": sum(each.stall for each in self.saves),
            "nbytes": {"median": int(median(sizes)), "largest": max(sizes)},
        }

    def to_json(self) -> dict[str, Any]:
        """Everything except individual logs and saves, for JSON."""
        return {
            **self.goodput.to_json(),
            "state": self.state,
            "epoch": self.epoch,
            "metrics": {name: strict(x) for name, x in self.last_metrics.items()},
            "saves": self.save_costs(),
            "faults": [asdict(fault) for fault in self.faults],
            "environment": dict(self.environment),
            "changes": [asdict(change) for change in self.changes],
        }


def read_facts(store: Store, name: str = "") -> RunFacts | None:
    """The facts about a run; None if it has recorded no events.

    Args:
        store: The run's store.
        name: The name to show; if empty, the run's path.
    """
    log = read_log(store.directory)
    if not log.attempts:
        return None
    goodput, spans = account(log)
    last = goodput.attempts[-1]
    logged, saves = _logged_and_saved(log)
    return RunFacts(
        name=name or str(store),
        goodput=goodput,
        spans=spans,
        state=state_of(last.attempt, last.outcome, log.beat),
        beat=log.beat,
        logged=logged or list(_of_checkpoints(store)),
        saves=saves,
        faults=faults(log, goodput.attempts),
        environment=log.attempts[0][0].environment,
        changes=changes(log.attempts),
    )


def _logged_and_saved(log: RunLog) -> tuple[Packed[Logged], Packed[Saved]]:
    logged, saves = Packed(Logged), Packed(Saved)
    for number, events in enumerate(log.attempts):
        for event in events:
            if event.step is None:
                continue
            if event.event == "metrics":
                logs = {name: float(value) for name, value in event.logs.items()}
                place = event.step, event.epoch or 0, event.batch or 0
                logged.append(Logged(number, *place, logs))
            elif event.event == "saved":
                costs = event.nbytes or 0, event.seconds, event.stall
                saves.append(Saved(event.time, event.step, *costs))
    return logged, saves


def _of_checkpoints(store: Store) -> Iterator[Logged]:
    """The metrics of the remaining checkpoints, for runs without metrics events."""
    for found in store.checkpoints(only_readable=True):
        if found.metrics:
            metrics = {name: float(x) for name, x in found.metrics.items()}
            yield Logged(-1, *found.progress, metrics)
