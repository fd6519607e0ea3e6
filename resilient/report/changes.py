"""What changed around an attempt: versions, the host, the number of processes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from resilient.telemetry.event import Event


@dataclass(frozen=True)
class Change:
    """A difference between an attempt's environment and the previous attempt's.

    Attributes:
        attempt: The attempt's number, from 1.
        name: The name of what changed.
        before: The former value; empty if there was none.
        after: The new value; empty if it is gone.
    """

    attempt: int
    name: str
    before: str
    after: str


def changes(attempts: Sequence[Sequence[Event]]) -> list[Change]:
    """What changed between attempts; older versions recorded less."""
    return list(_changes([_surroundings(events[0]) for events in attempts]))


def _changes(found: Sequence[Mapping[str, str]]) -> Iterator[Change]:
    known: dict[str, str] = {}
    for number, here in enumerate(found, 1):
        complete = len(here) > 1  # an older version recorded only the host
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
