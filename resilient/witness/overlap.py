"""Compares the steps that are trained again with what the killed attempt left."""

import math
from typing import NamedTuple

import numpy as np

from resilient.witness.ring import FIELDS, Entries, Field

_ROUNDING = 1e-5  # share of a loss by which sums in another order may differ


class Difference(NamedTuple):
    """The first step that differs.

    Attributes:
        step: The number of steps done.
        of: The first field that differs, in the order of a step.
        size: How far apart the first losses that differ are, as a share of the larger
            one; 0: no loss differs.
    """

    step: int
    of: Field
    size: float

    @property
    def is_rounding(self) -> bool:
        """Whether the losses are as close as sums in another order are."""
        return 0 < self.size < _ROUNDING


class Overlap:
    """The steps between a checkpoint and a kill.

    Args:
        begin: The step of the checkpoint.
        expected: What later steps left.

    Attributes:
        begin: The step of the checkpoint.
        last: The last of these steps.
    """

    def __init__(self, begin: int, expected: Entries) -> None:
        self._expected, self.begin = expected, begin
        self.last = max(expected, default=begin)
        self._found: Entries = {}
        self._different: set[int] = set()
        self._size = 0.0

    @property
    def compared(self) -> int:
        """How many steps were compared, those that are executed as one included."""
        steps = (at for at, found in self._found.items() if found.keys() - {"batch"})
        return max(steps, default=self.begin) - self.begin

    def has(self, step: int, field: Field) -> bool:
        """Whether there is something to compare."""
        return field in self._expected.get(step, ())

    def compare(self, step: int, field: Field, value: int) -> None:
        """Compare what ``has`` finds with its value now; from any thread."""
        expected = self._expected[step][field]
        self._found.setdefault(step, {})[field] = value
        if value != expected:
            if field == "loss":
                self._size = self._size or _apart(expected, value)
            self._different.add(step)

    def difference(self, *, settled: bool) -> Difference | None:
        """The first difference.

        Args:
            settled: Whether nothing more is coming; else a loss is waited for, which
                shows the size of a difference.
        """
        if not self._different:
            return None
        step = min(self._different.copy())
        expected, found = self._expected[step], self._found[step]
        of = next(f for f in FIELDS if f in found and found[f] != expected[f])
        awaited = "loss" in expected.keys() - found.keys()
        if not settled and (awaited or (of == "weights" and not self._size)):
            return None
        return Difference(step, of, self._size)


def _apart(one: int, other: int) -> float:
    """How far apart two losses are, by their bits."""
    pair = np.array([one, other], np.uint64).view(np.float64)
    with np.errstate(invalid="ignore"):
        apart = float(abs(pair[0] - pair[1]) / abs(pair).max())
    return apart if math.isfinite(apart) else 1.0
