"""Metrics over steps, as curves of few enough finite points to draw."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import Struct

from resilient.report.facts import Logged

MOST_CHARTS = 8
_MOST_POINTS = 1000
_HUGE = 1e30  # an axis up to here would flatten all other values
_OF_VALIDATION = "val_"


class Point(Struct, frozen=True, gc=False):
    """One value of a metric.

    Attributes:
        step: The number of batches trained.
        value: The value.
        attempt: The attempt that logged it, from 1; 0 if unknown.
    """

    step: int
    value: float
    attempt: int


@dataclass(frozen=True)
class Curve:
    """One metric of a run.

    Attributes:
        name: The name of the metric.
        points: The points to draw, oldest first.
        count: The number of values, drawn or not.
        odd: How many of them are not finite or too large to draw.
    """

    name: str
    points: Sequence[Point]
    count: int
    odd: int

    @property
    def group(self) -> str:
        """The metric without ``val_``: both share one chart."""
        return self.name.removeprefix(_OF_VALIDATION)


def curves(logged: Sequence[Logged]) -> list[Curve]:
    """All metrics: the loss first, then by name."""
    found: dict[str, list[Point]] = {}
    for each in logged:
        for name, value in each.metrics.items():
            point = Point(each.step, value, each.attempt + 1)
            found.setdefault(name, []).append(point)
    every = [_curve(name, points) for name, points in found.items()]
    return sorted(every, key=lambda c: (c.group != "loss", c.group, len(c.name)))


def _curve(name: str, points: Sequence[Point]) -> Curve:
    even = [p for p in points if math.isfinite(p.value) and abs(p.value) < _HUGE]
    return Curve(name, _fewer(even), len(points), len(points) - len(even))


def _fewer(points: Sequence[Point]) -> Sequence[Point]:
    """The minimum and maximum of each stretch that can be drawn, and the last point."""
    if len(points) <= _MOST_POINTS:
        return points
    length = math.ceil(len(points) / (_MOST_POINTS // 2))
    kept: list[Point] = []
    for start in range(0, len(points), length):
        stretch = range(start, min(start + length, len(points)))
        ends = {
            min(stretch, key=lambda i: points[i].value),
            max(stretch, key=lambda i: points[i].value),
        }
        kept += (points[i] for i in sorted(ends))
    return kept if kept[-1] is points[-1] else [*kept, points[-1]]
