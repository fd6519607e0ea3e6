"""The digests that the runs of a script recorded below a scratch directory."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from resilient.saving.digest import BATCH, POSITION, differing
from resilient.serialization import JSON
from resilient.storage.layout import events_process
from resilient.telemetry.events import read_events

STARTED = "started"  # the first event of a process that trains
DIGEST = "digest"  # after each step
LEFT = "left"  # after training: the variables as it leaves them


@dataclass(frozen=True, order=True)
class Place:
    """A moment in the training of one run.

    Attributes:
        run: The run's directory, relative.
        step: How many steps are done.
        epoch: How many epochs.
        batch: How many batches of the next epoch.
        process: Which of the processes that train together.
        at_end: Whether training has ended, callbacks included.
    """

    run: str
    step: int
    epoch: int
    batch: int
    process: int = 0
    at_end: bool = False

    @classmethod
    def of(cls, run: str, process: int, event: Mapping[str, Any]) -> "Place":
        """The place of an event."""
        step, epoch, batch = (event.get(name, 0) for name in ("step", "epoch", "batch"))
        return cls(run, step, epoch, batch, process, event["event"] == LEFT)

    def __str__(self) -> str:
        where = f"step {self.step:,} (epoch {self.epoch + 1:,}, batch {self.batch:,})"
        where = f"the end, step {self.step:,}," if self.at_end else where
        where += f" of {self.run}" if self.run not in ("", ".") else ""
        return f"{where} in process {self.process}" if self.process else where


@dataclass(frozen=True)
class Entry:
    """What was recorded at a place.

    Attributes:
        place: Where training was.
        time: When, Unix seconds.
        digest: The digest of the state.
        leaves: The digests of the state's leaves, joined.
        names: The names of these leaves.
    """

    place: Place
    time: float
    digest: str
    leaves: str
    names: tuple[str, ...]

    @property
    def batch(self) -> str:
        """The digest of the last batches; empty if they were not seen."""
        return self.leaves[:8] if self.names[:1] == (BATCH,) else ""


@dataclass(frozen=True)
class Recorded:
    """All that the runs below a directory recorded.

    Attributes:
        entries: By time.
        began: When the first training began, Unix seconds.
        runs: The runs' directories, relative.
        order: The places in the order in which they were first reached.
    """

    entries: tuple[Entry, ...]
    began: float
    runs: frozenset[str]
    order: dict[Place, int] = field(default_factory=dict)

    @property
    def times(self) -> list[float]:
        """When training began, and when it reached each place."""
        steps = (each.time for each in self.entries if not each.place.at_end)
        return [self.began, *steps]


@dataclass(frozen=True)
class Difference:
    """The first place at which two recordings differ.

    Attributes:
        at: Where that is.
        leaves: Names of the leaves that differ.
    """

    at: str
    leaves: tuple[str, ...]


def files_below(directory: Path) -> Iterator[tuple[str, Path, int]]:
    """The event files below a directory in use: run, run's directory, and process."""
    for folder, _, files in os.walk(directory):
        run = Path(folder).relative_to(directory).as_posix()
        for name in sorted(files):
            if (process := events_process(name)) is not None:
                yield run, Path(folder), process


def events_below(directory: Path) -> Iterator[tuple[Place, JSON]]:
    """The events below a directory, each with its place, by run and process."""
    for run, folder, process in files_below(directory):
        for event in read_events(folder, process):
            yield Place.of(run, process, event), event


def recorded(directory: Path) -> Recorded:
    """Read what was recorded below a directory."""
    entries: list[Entry] = []
    began: list[float] = []
    names: dict[tuple[str, int], tuple[str, ...]] = {}
    for place, event in events_below(directory):
        if event["event"] == STARTED:
            began.append(event["time"])
        elif event["event"] in (DIGEST, LEFT):
            of = place.run, place.process
            known = names[of] = tuple(event.get("names", names.get(of, ())))
            digests = event["digest"], event["leaves"]
            entries.append(Entry(place, event["time"], *digests, known))
    entries.sort(key=lambda each: each.time)
    order: dict[Place, int] = {}
    for each in entries:
        order.setdefault(each.place, len(order))
    runs = frozenset(run for run, *_ in files_below(directory))
    return Recorded(tuple(entries), min(began, default=0.0), runs, order)


def only_in_one(expected: Recorded, found: Recorded) -> list[Place]:
    """The places that only one of two recordings has.

    Neither leaves out a step: a state is recorded before it is saved. A fit that had
    ended may be called again by a script that was killed in a later one.
    """
    more = found.order.keys() - expected.order.keys()
    less = expected.order.keys() - found.order.keys()
    return sorted({*less, *(place for place in more if not place.at_end)})


def first_difference(
    expected: Recorded,
    found: Recorded,
    what: Literal["digest", "batch"] = "digest",
) -> Difference | None:
    """Where the second recording first differs; None if it does not.

    A rollback reaches a place more than once, with different states. Then each state is
    right that the first recording has there.

    Args:
        expected: What is right.
        found: What is compared with it.
        what: What of it: the whole states, or the batches alone.
    """
    known: dict[Place, dict[str, Entry]] = {}
    for each in expected.entries:
        known.setdefault(each.place, {})[getattr(each, what)] = each
    differ = [
        each
        for each in found.entries
        if each.place in known and getattr(each, what) not in known[each.place]
    ]
    if not differ:
        return None
    theirs = min(differ, key=lambda each: expected.order[each.place])
    *_, ours = known[theirs.place].values()
    if len(ours.names) != len(theirs.names):
        names = sorted({*ours.names} ^ {*theirs.names})
        return Difference(str(ours.place), tuple(names))
    names = differing(theirs.names, ours.leaves, theirs.leaves)
    names.sort(key=lambda name: name == POSITION)  # which alone is no difference
    return Difference(str(ours.place), tuple(names))
