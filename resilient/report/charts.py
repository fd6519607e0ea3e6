"""Draws the charts of one run with Altair.

Charts get values in long form only: names from files never become field names or parts
of expressions.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from resilient.display import duration, size
from resilient.errors import printable
from resilient.report.bars import Timeline, timeline
from resilient.report.curves import Curve
from resilient.report.facts import RunFacts, Saved
from resilient.report.look import DASHES, PARTS, SERIES, SHAPES, color
from resilient.telemetry.accounting import Span

Chart = Any  # Altair's charts share no base class that mypy could check
_MOST_SAVES = 1500
_MOST_KILLS = 60
_ROW = 26  # pixels per row of bars


def _finished(chart: Chart, *, height: int) -> Chart:
    """A chart with the width common to all charts."""
    return chart.properties(width="container", height=height)


def _data_of(rows: Sequence[Mapping[str, Any]]) -> alt.Data:
    """Rows as Altair's inline data."""
    return alt.Data(values=[dict(row) for row in rows])


def _part_color() -> alt.Color:
    """The colour of each part of the time; the page has its own legend."""
    colors = [color(f"part-{name}") for name in PARTS]
    scale = alt.Scale(domain=list(PARTS), range=colors)
    return alt.Color("part:N", scale=scale, legend=None)


def shares(parts: Mapping[str, float]) -> Chart:
    """A bar that is divided into the parts of a run's time, in seconds."""
    order, whole = list(PARTS), sum(parts.values()) or 1.0
    rows = [
        {
            "part": part,
            "order": order.index(part),
            "share": seconds / whole,
            "text": f"{duration(seconds)} ({seconds / whole:.1%})",
        }
        for part, seconds in parts.items()
        if seconds
    ]
    base = alt.Chart(_data_of(rows)).mark_bar(height={"band": 0.7})
    chart = base.encode(
        x=alt.X(
            "share:Q",
            axis=alt.Axis(format="%", title="share of the time", tickCount=5),
            scale=alt.Scale(domain=[0, 1]),
        ),
        color=_part_color(),
        order="order:Q",
        tooltip=_tips(part="part", text="time"),
    )
    return _finished(chart, height=_ROW + 8)


def attempts(facts: RunFacts) -> tuple[Chart, Timeline]:
    """A row of bars for each attempt, with a cross where one ended early."""
    drawn = timeline(facts.spans())
    order = [str(n) for n in range(drawn.first + 1, len(facts.goodput.attempts) + 1)]
    y = alt.Y("attempt:N", sort=order, title=None, scale=alt.Scale(domain=order))
    axis = alt.Axis(title="time (UTC)", format=_TIMES, labelOverlap="greedy")
    x = alt.X("begin:T", axis=axis, scale=alt.Scale(type="utc"))
    heights = [each[2] for each in PARTS.values()]
    bar_height = alt.Scale(type="ordinal", domain=list(PARTS), range=heights)
    bars = alt.Chart(_data_of([_bar(span) for span in drawn.bars])).mark_bar()
    bars = bars.encode(
        x=x,
        x2="end:T",
        y=y,
        color=_part_color(),
        size=alt.Size("part:O", scale=bar_height, legend=None),
        tooltip=_tips("attempt", part="part", text="time"),
    )
    crosses = alt.Chart(_data_of(_ends(facts, drawn.first)))
    cross = {"shape": _CROSS, "size": 90, "strokeWidth": 2.5}
    ends = crosses.mark_point(**cross, color=color("fault"), opacity=1).encode(
        x=x, y=y, tooltip=_tips("attempt", kind="end", step="step")
    )
    return _finished(bars + ends, height=_ROW * max(1, len(order))), drawn


# A 24-hour clock.
_TIMES = {
    **dict.fromkeys(("hours", "minutes"), "%H:%M"),
    "seconds": "%H:%M:%S",
    "milliseconds": "%H:%M:%S.%L",
    "date": "%b %d",
}
_CROSS = "M-1,-1L1,1M1,-1L-1,1"


def _bar(span: Span) -> dict[str, Any]:
    return {
        "attempt": str(span.attempt + 1),
        "part": span.part,
        "begin": span.begin * 1000,  # JavaScript's time
        "end": span.end * 1000,
        "text": duration(span.end - span.begin),
    }


def _ends(facts: RunFacts, first: int = 0) -> list[dict[str, Any]]:
    """The ends of the attempts that did not finish the run."""
    return [
        {
            "attempt": str(number),
            "begin": each.ended * 1000,
            "step": each.step,
            "kind": each.outcome,
        }
        for number, each in enumerate(facts.goodput.attempts, 1)
        if each.outcome not in ("ended", "unknown") and number > first
    ]


def metric(group: Sequence[Curve], facts: RunFacts) -> Chart:
    """Curves of a metric, in training and validation, with a rule at each kill."""
    named = {curve.name: curve for curve in group}
    chart = _curves(named, title=group[0].group)
    kills = _ends(facts)[-_MOST_KILLS:]
    if not kills:
        return _finished(chart, height=240)
    rules = alt.Chart(_data_of(kills)).mark_rule(
        color=color("fault"), strokeDash=[3, 3], opacity=0.8
    )
    rules = rules.encode(x="step:Q", tooltip=_tips("attempt", kind="end", step="step"))
    crosses = alt.Chart(_data_of(kills)).mark_point(
        shape=_CROSS, size=60, strokeWidth=2, color=color("fault"), opacity=1
    )
    crosses = crosses.encode(x="step:Q", y=alt.value(0))
    return _finished(chart + rules + crosses, height=240)


def _curves(found: Mapping[str, Curve], *, title: str) -> Chart:
    """Lines by their names, each with its own colour, dash and shape.

    Args:
        found: The curves, by the name of their line.
        title: The title of the y axis.
    """
    names = [printable(name) for name in found]
    rows = [
        {
            "line": name,
            "step": point.step,
            "value": point.value,
            "attempt": point.attempt or "not known",
        }
        for name, curve in zip(names, found.values(), strict=True)
        for point in curve.points
    ]
    few = all(len(curve.points) <= 60 for curve in found.values())
    colors = [color(f"series-{name}") for name in SERIES][: len(names)]

    def scale(values: Sequence[Any]) -> alt.Scale:
        return alt.Scale(domain=names, range=list(values[: len(names)]))

    base = alt.Chart(_data_of(rows)).encode(
        x=alt.X("step:Q", title="step", scale=alt.Scale(nice=False)),
        y=alt.Y("value:Q", title=printable(title), scale=alt.Scale(zero=False)),
        color=alt.Color("line:N", scale=scale(colors), legend=None),
    )
    lines = base.mark_line(strokeWidth=2).encode(
        strokeDash=alt.StrokeDash("line:N", scale=scale(DASHES), legend=None),
        order="step:Q",
    )
    points = base.mark_point(
        filled=True, size=45 if few else 9, opacity=1 if few else 0.7
    )
    points = points.encode(
        shape=alt.Shape("line:N", scale=scale(SHAPES), legend=None),
        tooltip=_tips(line="metric", step="step", value="value", attempt="attempt"),
    )
    return lines + points


def saves(facts: RunFacts) -> tuple[Chart, Chart, int]:
    """Charts of the durations and the sizes of saves, and the number drawn."""
    every = -(-len(facts.saves) // _MOST_SAVES)
    drawn = facts.saves[::every] if every else facts.saves
    kinds = ("written in the background", "training waited")
    rows = [
        {"step": each.step, "what": what, "value": value, "text": f"{value:.3f} s"}
        for each in drawn
        for what, value in zip(kinds, (each.seconds, each.stall), strict=True)
    ]
    seconds = _dots(rows, kinds, "seconds per save")
    rows = [_size(each) for each in drawn]
    return seconds, _dots(rows, ("size",), "megabytes per save"), len(drawn)


def _size(each: Saved) -> dict[str, Any]:
    value = each.nbytes / 1e6
    return {
        "step": each.step,
        "what": "size",
        "value": value,
        "text": size(each.nbytes),
    }


def _dots(rows: Sequence[Mapping[str, Any]], kinds: Sequence[str], title: str) -> Chart:
    colors = [color(f"series-{name}") for name in SERIES][: len(kinds)]
    shapes = list(SHAPES[: len(kinds)])
    points = alt.Chart(_data_of(rows)).mark_point(filled=True, size=40, opacity=0.85)
    chart = points.encode(
        x=alt.X("step:Q", title="step", scale=alt.Scale(nice=False)),
        y=alt.Y("value:Q", title=title),
        color=alt.Color(
            "what:N", scale=alt.Scale(domain=list(kinds), range=colors), legend=None
        ),
        shape=alt.Shape(
            "what:N", scale=alt.Scale(domain=list(kinds), range=shapes), legend=None
        ),
        tooltip=_tips("what", step="step", text="value"),
    )
    return _finished(chart, height=180)


def _tips(*fields: str, **titles: str) -> list[alt.Tooltip]:
    named = {field: field for field in fields} | titles
    numbers = ("step", "value")
    return [
        alt.Tooltip(f"{field}:{'Q' if field in numbers else 'N'}", title=title)
        for field, title in named.items()
    ]
