"""The moments at which a script is killed, chosen at random."""

import random
from bisect import bisect_right
from dataclasses import dataclass, replace

from resilient.prove.recorded import Place, Recorded


@dataclass(frozen=True)
class Moment:
    """When to kill: some time after the script reaches a place.

    Attributes:
        place: None: the start of its first training.
        order: How many places come before it.
        delay: Seconds after that.
        saved: Whether it also waits until there is a checkpoint to resume from.
    """

    place: Place | None
    order: int
    delay: float
    saved: bool = False


def moments(of: Recorded, kills: int, seed: int, *, until: float) -> list[Moment]:
    """When to kill: at random steps and, every other time, at random times.

    Most of the time, a script may compile its first step, or validate. The last kill
    waits for a save: training may be faster than the first one.

    Args:
        of: What an uninterrupted run recorded.
        kills: How many.
        seed: Chooses them.
        until: The part of that run in which to kill, up to 1.
    """
    chosen = random.Random(seed)
    entries = [each for each in of.entries if not each.place.at_end]
    times = [of.began, *(each.time for each in entries)]
    found = []
    for number in range(kills):
        part = chosen.uniform(0, until)
        if number % 2:
            at = times[0] + part * (times[-1] - times[0])
        else:
            step = int(part * (len(times) - 1))
            at = chosen.uniform(times[step], times[step + 1])
        reached = bisect_right(times, at) - 1
        place = entries[reached - 1].place if reached else None
        order = 0 if place is None else of.order[place]
        found.append(Moment(place, order, at - times[reached]))
    found.sort(key=lambda each: (each.place is not None, each.order, each.delay))
    return [*found[:-1], replace(found[-1], saved=True)]
