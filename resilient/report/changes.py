"""What is different around an attempt: versions, the machine, how many processes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from resilient.telemetry.event import Event


@dataclass(frozen=True)
class Change:
    """One attempt ran in another environment than the one before.

    Attributes:
        attempt: Which, from 1.
        name: What changed.
        before: What it was; empty if there was none.
        after: What it is; empty if there is none any more.
    """

    attempt: int
    name: str
    before: str
    after: str


def changes(attempts: Sequence[Sequence[Event]]) -> list[Change]:
    """What changed from attempt to attempt; what older versions recorded is less."""
    return list(_changes([_surroundings(events[0]) for events in attempts]))


def _changes(found: Sequence[Mapping[str, str]]) -> Iterator[Change]:
    known: dict[str, str] = {}
    for number, here in enumerate(found, 1):
        complete = len(here) > 1  # an older version recorded the host, and no more
        for name in {**known, **here} if complete else here:
            before, after = known.get(name, ""), here.get(name, "")
            if before != after and (before or len(known) > 1):
                yield Change(number, name, before, after)
        known = dict(here) if complete else {**known, **here}


def _surroundings(started: Event) -> dict[str, str]:
    found = {"host": started.host, **started.environment}
    if started.processes is not None:
        found["processes"] = str(started.processes)
    return found
