"""Draws the charts of a report as HTML and SVG, which need no script.

Places are percentages, so that a chart takes the width that it gets; colours and dashes
are those of ``page.css``. Names and texts come from untrusted files, so ``tag`` escapes
all of them.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from xml.etree import ElementTree as ET

from resilient.display import duration
from resilient.errors import printable
from resilient.telemetry.goodput import Span

_ROW = 26  # pixels per row of bars
_UNITS = {"days": 86400, "hours": 3600, "minutes": 60, "seconds": 1}
_MOST_DOTS = 200  # on a line
_CROSS = "M-4.5-4.5L4.5 4.5M4.5-4.5L-4.5 4.5"

Curves = Mapping[str, Sequence[tuple[int, float]]]  # steps and values, by name
Labels = Sequence[tuple[float, str]]  # texts at places from 0 to 1


class End(NamedTuple):
    """Where an attempt ended early; attempts count from 0."""

    attempt: int
    time: float
    step: int
    tip: str


class _Scale(NamedTuple):
    """A range of numbers, and their places between 0 and 1."""

    low: float
    high: float

    @classmethod
    def of(cls, numbers: Iterable[float], margin: float = 0.0) -> "_Scale":
        found = list(numbers)
        low, high = min(found), max(found)
        margin = margin * (high - low) or (abs(high) or 1.0) * (low == high)
        return cls(low - margin, high + margin)

    def at(self, number: float) -> float:
        return (number - self.low) / (self.high - self.low)

    def ticks(self) -> list[tuple[float, str]]:
        """The places of up to eight round numbers, with their texts."""
        rough = (self.high - self.low) / 8
        power = 10.0 ** math.floor(math.log10(rough))
        every = next(n * power for n in (1, 2, 5, 10) if n * power >= rough)
        first, last = math.ceil(self.low / every), math.floor(self.high / every)
        numbers = (n * every for n in range(first, last + 1))
        return [(self.at(number), f"{number:,.6g}") for number in numbers]


def tag(kind: str, /, *content: ET.Element | str, **attributes: object) -> ET.Element:
    """An element; ``class_`` stands for ``class``, and an underscore for a hyphen."""
    made = ET.Element(kind)
    for key, value in attributes.items():
        made.set(key.rstrip("_").replace("_", "-"), printable(str(value)))
    for each in content:
        if isinstance(each, ET.Element):
            made.append(each)
        else:
            made.text = printable(each)
    return made


def shares(parts: Mapping[str, float]) -> ET.Element:
    """A bar that is divided into the parts of a run's time."""
    whole, begin, bars = sum(parts.values()), 0.0, []
    for part, seconds in parts.items():
        end = begin + seconds / whole
        tip = f"{part}: {duration(seconds)} ({seconds / whole:.1%})"
        bars.append(_bar(part, begin, end, _ROW / 2, tip))
        begin = end
    caption = "How the time of all attempts divides into parts"
    return _figure(caption, _keys(parts), _ROW, bars)


def timeline(spans: Sequence[Span], ends: Iterable[End]) -> ET.Element:
    """A row of bars for each attempt, and a cross where one ended early."""
    count = spans[-1].attempt + 1
    time = _Scale(spans[0].begin, max(span.end for span in spans))
    whole = time.high - time.low
    unit, length = next((u, n) for u, n in _UNITS.items() if whole >= 2 * n or n == 1)
    drawn = []
    for span in _joined(spans, whole / 1000):
        seconds = duration(span.end - span.begin)
        tip = f"attempt {span.attempt + 1:,}: {span.part}, {seconds}"
        place = time.at(span.begin), time.at(span.end), (span.attempt + 0.5) * _ROW
        drawn.append(_bar(span.part, *place, tip))
    for end in ends:
        drawn.append(_cross(time.at(end.time), (end.attempt + 0.5) * _ROW, end.tip))
    across = _Scale(0.0, whole / length).ticks()
    up = [((row + 0.5) / count, f"{row + 1:,}") for row in range(count)]
    keys = [*_keys({span.part: 1.0 for span in spans}), _early_key()]
    caption = f"What each attempt did, and when, in {unit}"
    return _figure(caption, keys, _ROW * count, drawn, across=across, up=up)


def _joined(spans: Iterable[Span], narrowest: float) -> list[Span]:
    """Bars, with those that are too narrow to draw in the ones before them."""
    bars: list[Span] = []
    for span in spans:
        last = bars[-1] if bars and bars[-1].attempt == span.attempt else None
        narrow = span.end - span.begin < narrowest
        if last is not None and (narrow or last.part == span.part):
            bars[-1] = Span(last.attempt, last.part, last.begin, span.end)
        else:
            bars.append(span)
    return bars


def lines(caption: str, curves: Curves, ends: Sequence[End] = ()) -> ET.Element:
    """Values over steps, with a line wherever an attempt ended early.

    Args:
        caption: What they are.
        curves: All finite.
        ends: The ends of attempts.
    """
    every = [point for points in curves.values() for point in points]
    right = _Scale.of(step for step, _ in every)
    up = _Scale.of((value for _, value in every), margin=0.05)
    drawn, keys = [], []
    for end in ends:
        if right.low <= end.step <= right.high:
            at = right.at(end.step)
            drawn += [_rule(at, "end"), _cross(at, 6, end.tip)]
    for number, (name, points) in enumerate(curves.items()):
        series = f"series-{number}"
        places = [(right.at(step), 1 - up.at(value)) for step, value in points]
        path = " ".join(f"{x * 1000:.1f},{y * 1000:.1f}" for x, y in places)
        fit = {"viewBox": "0 0 1000 1000", "preserveAspectRatio": "none"}
        line = tag("svg", tag("polyline", points=path), **fit)
        dots = [
            tag("circle", tag("title", tip), cx=f"{x:.2%}", cy=f"{y:.2%}", r=3)
            for (x, y), (step, value) in zip(places, points, strict=True)
            for tip in [f"{name}: {value:.4g} at step {step:,}"]
        ]
        few = dots * (len(dots) <= _MOST_DOTS)
        drawn.append(tag("g", line, *few, class_=series))
        keys.append(_key(name, tag("polyline", points="0,8 26,8", class_=series)))
    keys += [_early_key()] * bool(ends)
    rows = [(1 - place, text) for place, text in up.ticks()]
    return _figure(caption, keys, 220, drawn, across=right.ticks(), up=rows)


def _figure(
    caption: str,
    keys: Iterable[ET.Element],
    height: float,
    drawn: Iterable[ET.Element],
    *,
    across: Labels = (),
    up: Labels = (),
) -> ET.Element:
    """An area with labels, below a caption and a legend."""
    grid = (_rule(at, "grid") for at, _ in across)
    beside = (tag("span", text, style=f"top:{at:.2%}") for at, text in up)
    below = (tag("span", text, style=f"left:{at:.2%}") for at, text in across)
    chart = (
        tag("div", *beside, class_="y"),
        tag("svg", *grid, *drawn, class_="area", height=height),
        tag("div", *below, class_="x"),
    )
    return tag(
        "figure",
        tag("figcaption", caption),
        tag("ul", *keys, class_="legend", aria_hidden="true"),
        tag("div", *chart, class_="chart", role="img", aria_label=caption),
    )


def _keys(parts: Mapping[str, float]) -> list[ET.Element]:
    """The legend of the parts of the time that occur."""
    return [_key(name, _bar(name, 0, 1, 8)) for name, x in parts.items() if x]


def _early_key() -> ET.Element:
    return _key("attempt ended early", _cross(0.5, 8))


def _key(name: str, drawn: ET.Element) -> ET.Element:
    return tag("li", tag("svg", drawn, width=26, height=16), tag("span", name))


def _bar(part: str, begin: float, end: float, y: float, tip: str = "") -> ET.Element:
    place = {"x": f"{begin:.3%}", "width": f"{end - begin:.3%}", "y": y}
    return tag("rect", tag("title", tip), **place, class_=f"part-{part}")


def _cross(x: float, y: float, tip: str = "") -> ET.Element:
    """The end of an attempt that ended early."""
    path = tag("path", tag("title", tip), d=_CROSS, class_="cross")
    return tag("svg", path, x=f"{x:.2%}", y=y, overflow="visible")


def _rule(x: float, kind: str) -> ET.Element:
    place = {"x1": f"{x:.2%}", "x2": f"{x:.2%}", "y1": "0", "y2": "100%"}
    return tag("line", **place, class_=kind)
