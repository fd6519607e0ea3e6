"""The digests that the runs of a script recorded below a scratch directory."""

import os
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from resilient.saving.digest import POSITION, differing
from resilient.storage.layout import EVENTS
from resilient.telemetry.events import read_events


@dataclass(frozen=True, order=True)
class Place:
    """A moment in the training of one run: so many steps were done."""

    run: str
    step: int
    epoch: int
    batch: int

    def __str__(self) -> str:
        where = f"step {self.step:,} (epoch {self.epoch + 1:,}, batch {self.batch:,})"
        return where if self.run in ("", ".") else f"{where} of {self.run}"


@dataclass(frozen=True)
class Entry:
    """What was recorded at a place.

    Attributes:
        place: Where training was.
        attempt: The attempt that recorded it.
        time: When, Unix seconds.
        digest: The digest of the state, or of the batch.
        leaves: The digests of the state's leaves, joined.
        names: The names of these leaves.
    """

    place: Place
    attempt: str
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
        ended: When the last training ended.
        resumed: Where each process of the script resumed last, oldest process first;
            None: it began from the start.
        runs: The runs' directories, relative.
        order: The places in the order in which they were first reached.
    """

    entries: tuple[Entry, ...]
    began: float
    ended: float
    resumed: tuple[Place | None, ...]
    runs: tuple[str, ...]
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


def events_below(directory: Path) -> list[Path]:
    """The event files of all runs below a directory, which may be in use."""
    found = []
    for folder, folders, files in os.walk(directory):
        folders[:] = [each for each in folders if not each.startswith("step-")]
        if EVENTS in files:
            found.append(Path(folder, EVENTS))
    return found


def recorded(directory: Path) -> Recorded:
    """Read what was recorded below a directory."""
    entries: list[Entry] = []
    times: list[float] = []
    resumed: list[tuple[float, int, Place | None]] = []
    runs = []
    for path in sorted(events_below(directory)):
        run = path.parent.relative_to(directory).as_posix()
        runs.append(run)
        names: tuple[str, ...] = ()
        for event in read_events(path.parent):
            times.append(event["time"])
            if event["event"] == "started":
                resumed.append((event["time"], event["pid"], None))
            elif event["event"] == "restored":
                at = _entry(run, event, ()).place
                resumed.append((event["time"], event["pid"], at))
            elif event["event"] == "digest":
                entries.append(entry := _entry(run, event, names))
                names = entry.names
    entries.sort(key=lambda each: each.time)
    order: dict[Place, int] = {}
    for each in entries:
        order.setdefault(each.place, len(order))
    processes: dict[int, Place | None] = {}
    for _, pid, place in sorted(resumed, key=lambda each: each[0]):
        processes[pid] = place or processes.get(pid)
    began, ended = (min(times), max(times)) if times else (0.0, 0.0)
    went_on = tuple(processes.values())
    return Recorded(tuple(entries), began, ended, went_on, tuple(runs), order)


def _entry(run: str, event: dict[str, object], names: tuple[str, ...]) -> Entry:
    numbers = (event.get(name) for name in ("step", "epoch", "batch"))
    step, epoch, batch = (n if isinstance(n, int) else 0 for n in numbers)
    found = event.get("names")
    if isinstance(found, list):
        names = tuple(map(str, found))
    return Entry(
        Place(run, step, epoch, batch),
        str(event["attempt"]),
        float(str(event["time"])),
        str(event.get("digest", "")),
        str(event.get("leaves", "")),
        names,
    )


def first_difference(expected: Recorded, found: Recorded) -> Difference | None:
    """Where the second recording first differs; None if it does not.

    Within an attempt, a state that differs stays different, so each attempt is searched
    by bisection. The earliest place of all attempts counts.
    """
    known: dict[Place, Entry] = {}
    for each in expected.entries:
        known.setdefault(each.place, each)
    firsts = [
        entries[at]
        for entries in _attempts(found, known)
        if (at := _search(entries, known)) < len(entries)
    ]
    if not firsts:
        return None
    theirs = min(firsts, key=lambda each: expected.order[each.place])
    ours = known[theirs.place]
    if len(ours.names) != len(theirs.names):
        return Difference(ours.place, ())
    names = differing(theirs.names, ours.leaves, theirs.leaves)
    names.sort(key=lambda name: name == POSITION)  # which alone is no difference
    return Difference(ours.place, tuple(names))


def _attempts(found: Recorded, known: dict[Place, Entry]) -> Iterator[list[Entry]]:
    """The entries of each attempt that have a counterpart, oldest attempt first."""
    grouped: dict[str, list[Entry]] = {}
    for each in found.entries:
        if each.place in known:
            grouped.setdefault(each.attempt, []).append(each)
    yield from grouped.values()


def _search(entries: list[Entry], known: dict[Place, Entry]) -> int:
    return bisect_left(
        entries, True, key=lambda each: each.digest != known[each.place].digest
    )
