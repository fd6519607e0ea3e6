"""The digests that the runs of a script recorded below a scratch directory."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resilient.saving.digest import POSITION, differing
from resilient.storage.layout import events_process
from resilient.telemetry.events import read_events

STARTED = "started"  # the first event of a process that trains
LEFT = "left"  # the last one: the variables as the script leaves them


@dataclass(frozen=True, order=True)
class Place:
    """A moment in the training of one run.

    Attributes:
        run: The run's directory, relative.
        step: How many steps are done.
        epoch: How many epochs.
        batch: How many batches of the next epoch.
        process: Which of the processes that train together.
        at_end: Whether it is the end of the script; then the numbers are 0.
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
        where = "the end of the script" if self.at_end else where
        where += f" of {self.run}" if self.run not in ("", ".") else ""
        return f"{where} in process {self.process}" if self.process else where


@dataclass(frozen=True)
class Entry:
    """What was recorded at a place.

    Attributes:
        place: Where training was.
        time: When, Unix seconds.
        digest: The digest of the state, or of the batch.
        leaves: The digests of the state's leaves, joined.
        names: The names of these leaves.
    """

    place: Place
    time: float
    digest: str
    leaves: str = ""
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recorded:
    """All that the runs below a directory recorded.

    Attributes:
        entries: By time.
        began: When the first training began, Unix seconds.
        ended: When the last state of training was recorded.
        runs: The runs' directories, relative.
        rolled_back: Whether a run went back after a bad loss.
        order: The places in the order in which they were first reached.
    """

    entries: tuple[Entry, ...]
    began: float = 0.0
    ended: float = 0.0
    runs: tuple[str, ...] = ()
    rolled_back: bool = False
    order: dict[Place, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Difference:
    """The first place at which two recordings differ.

    Attributes:
        place: Where that is.
        leaves: Names of the leaves that differ; empty for a batch.
    """

    place: Place
    leaves: tuple[str, ...]


def events_below(directory: Path) -> Iterator[tuple[Path, int]]:
    """The event files below a directory in use, each with the process's number."""
    for folder, _, files in os.walk(directory):
        for name in sorted(files):
            if (process := events_process(name)) is not None:
                yield Path(folder, name), process


def recorded(directory: Path) -> Recorded:
    """Read what was recorded below a directory."""
    entries: list[Entry] = []
    began: list[float] = []
    runs, rolled_back = set(), False
    for path, process in events_below(directory):
        run = path.parent.relative_to(directory).as_posix()
        runs.add(run)
        names: tuple[str, ...] = ()
        for event in read_events(path.parent, process, all_of_them=True):
            place = Place.of(run, process, event)
            if event["event"] == STARTED:
                began.append(event["time"])
            elif event["event"] == "diverged":
                rolled_back |= event.get("action") == "rollback"
            elif event["event"] in ("digest", LEFT):
                names = tuple(event.get("names", names))
                found = event["digest"], event.get("leaves", ""), names
                entries.append(Entry(place, event["time"], *found))
    entries.sort(key=lambda each: each.time)
    order: dict[Place, int] = {}
    for each in entries:
        order.setdefault(each.place, len(order))
    return Recorded(
        tuple(entries),
        min(began, default=0.0),
        max((each.time for each in entries if not each.place.at_end), default=0.0),
        tuple(sorted(runs)),
        rolled_back,
        order,
    )


def only_in_one(expected: Recorded, found: Recorded) -> list[Place]:
    """The places that only one of two recordings has.

    Neither leaves one out: a state is recorded before it is saved.
    """
    return sorted(expected.order.keys() ^ found.order.keys())


def first_difference(expected: Recorded, found: Recorded) -> Difference | None:
    """Where the second recording first differs; None if it does not.

    A rollback reaches a place more than once, with different states. Then each state is
    right that the first recording has there.
    """
    known: dict[Place, dict[str, Entry]] = {}
    for each in expected.entries:
        known.setdefault(each.place, {})[each.digest] = each
    differ = [
        each
        for each in found.entries
        if each.place in known and each.digest not in known[each.place]
    ]
    if not differ:
        return None
    theirs = min(differ, key=lambda each: expected.order[each.place])
    *_, ours = known[theirs.place].values()
    if len(ours.names) != len(theirs.names):
        return Difference(ours.place, ())
    names = differing(theirs.names, ours.leaves, theirs.leaves)
    names.sort(key=lambda name: name == POSITION)  # which alone is no difference
    return Difference(ours.place, tuple(names))
