"""When to save.

every(steps=500) | every(minutes=10)
adaptive(overhead=0.01)
"""

import math
from dataclasses import dataclass
from typing import Literal

from resilient.errors import message, require_integer, require_number
from resilient.policies.interval import Adaptive, Cost
from resilient.progress import Progress

_OR_ELSE = ', "auto", "epoch", or a policy such as every(minutes=10)'


@dataclass(frozen=True)
class SavePolicy:
    """When to save: as soon as any of its intervals has passed.

    Attributes:
        epochs: Intervals in whole epochs; these saves are at the ends of epochs.
        steps: Intervals in batches since the start of the run.
        seconds: Time since the last save, or None.
        autos: Intervals that depend on the cost of a save.
    """

    epochs: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    seconds: float | None = None
    autos: tuple[Adaptive, ...] = ()

    def __or__(self, other: "SavePolicy") -> "SavePolicy":
        if not isinstance(other, SavePolicy):
            return NotImplemented
        times = [t for t in (self.seconds, other.seconds) if t is not None]
        return SavePolicy(
            epochs=tuple(sorted({*self.epochs, *other.epochs})),
            steps=tuple(sorted({*self.steps, *other.steps})),
            seconds=min(times, default=None),
            autos=tuple(dict.fromkeys(self.autos + other.autos)),
        )

    @property
    def words(self) -> str:
        """When that is, in words."""
        found = [
            "at the end of each epoch" if n == 1 else f"every {n:,} epochs"
            for n in self.epochs
        ]
        found += [f"every {n:,} batches" for n in self.steps]
        if self.seconds is not None:
            found.append(f"every {self.seconds:,.0f} s")
        if self.autos:
            share = max(each.overhead for each in self.autos)
            found.append(f"in between, for at most {100 * share:.2g}% of the time")
        return " and ".join(found) or "at the end"

    def seconds_between(self, cost: Cost | None) -> float | None:
        """The shortest interval in seconds, if there is one, for a measured cost."""
        intervals = [each.interval(cost) for each in self.autos]
        if self.seconds is not None:
            intervals.append(self.seconds)
        return min(intervals, default=None)

    def next_step(self, last: Progress) -> float:
        """The step before which none is due between two batches, by number.

        Args:
            last: Progress at the last save, or when the attempt began.
        """
        steps = [(last.step // n + 1) * n for n in self.steps]
        return min(steps, default=math.inf)

    def due(
        self,
        now: float,
        progress: Progress,
        last_now: float,
        last: Progress,
        cost: Cost | None = None,
    ) -> bool:
        """Whether to save at ``progress``.

        A multiple of an interval counts when it lies after the last save, up to and
        including now: ``steps_per_execution`` may jump over the multiple itself.

        Args:
            now: Seconds on a monotonic clock.
            progress: Where the run is.
            last_now: The clock at the last save, or when the attempt began.
            last: Progress at the last save, or when the attempt began.
            cost: The cost of a save, if it has been measured.
        """
        if progress.step == last.step and progress.epoch == last.epoch:
            return False
        for n in self.steps:
            if progress.step // n > last.step // n:
                return True
        if progress.batch == 0:  # at an epoch's end
            for n in self.epochs:
                if progress.epoch // n > last.epoch // n:
                    return True
        seconds = self.seconds_between(cost)
        return seconds is not None and now - last_now >= seconds


def every(
    *,
    epochs: int | None = None,
    steps: int | None = None,
    seconds: float | None = None,
    minutes: float | None = None,
) -> SavePolicy:
    """Save at regular intervals; with several, whenever any of them has passed.

    Args:
        epochs: Number of epochs between saves; each save follows validation.
        steps: Number of training batches between saves.
        seconds: Seconds since the last save.
        minutes: Minutes since the last save.

    Raises:
        TypeError: If an interval has the wrong type.
        ValueError: If there is no interval, or one is not positive.
    """
    policy = SavePolicy()
    if epochs is not None:
        policy |= SavePolicy(epochs=(require_integer(epochs, "every(epochs=...)"),))
    if steps is not None:
        policy |= SavePolicy(steps=(require_integer(steps, "every(steps=...)"),))
    if seconds is not None:
        policy |= SavePolicy(seconds=require_number(seconds, "every(seconds=...)"))
    if minutes is not None:
        policy |= SavePolicy(seconds=60 * require_number(minutes, "every(minutes=...)"))
    if policy == SavePolicy():
        todo = "Give one or more of epochs=, steps=, seconds= and minutes=."
        raise ValueError(message("`every` needs an interval.", hint=todo))
    return policy


def adaptive(*, overhead: float = 0.02, mtbf: float = 3600.0) -> SavePolicy:
    """Save at the end of each epoch, and in between as often as the overhead allows.

    The interval depends on the measured cost of a save (Young 1974, Daly 2006); a kill
    loses about half of it. The first save, about five seconds after the first batch,
    measures the cost.

    Args:
        overhead: The largest share of training time that saves may take, such as 0.02.
        mtbf: The machine's mean time between failures, in seconds.

    Raises:
        TypeError: If one of them is not a number.
        ValueError: If one is not positive, or the share is 1 or more.
    """
    share = require_number(overhead, "adaptive(overhead=...)", below=1)
    each = Adaptive(overhead=share, mtbf=require_number(mtbf, "adaptive(mtbf=...)"))
    return SavePolicy(epochs=(1,), autos=(each,))


# What `save_freq` may be.
SaveFreq = Literal["auto", "epoch"] | int | SavePolicy


def save_policy(value: str | int | SavePolicy) -> SavePolicy:
    """Read ``save_freq``: ``"auto"``, ``"epoch"``, a number of batches, or a policy."""
    if isinstance(value, SavePolicy):
        return value
    if value == "auto":
        return adaptive()
    if value == "epoch":
        return every(epochs=1)
    if not isinstance(value, str):
        return every(steps=require_integer(value, "save_freq", or_else=_OR_ELSE))
    what = f"`save_freq` must be a number of batches{_OR_ELSE}."
    raise ValueError(message(what, received=repr(value)))
