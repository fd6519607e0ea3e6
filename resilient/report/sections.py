"""Builds the sections of one run's page."""

import math
import time
from collections.abc import Mapping, Sequence
from itertools import groupby

from resilient.display import duration, metrics, size
from resilient.report import charts
from resilient.report.bars import MOST_ATTEMPTS, Timeline
from resilient.report.curves import MOST_CHARTS, Curve, curves
from resilient.report.facts import Logged, RunFacts
from resilient.report.look import DASHES, PARTS, SERIES
from resilient.report.page import Figure, Key, Page, Section, Table, Tile

_ROWS = 500  # rows in a table
_MEANS = {
    "productive": "training that survived",
    "saving": "training waited for a save",
    "starting": "before the first batch was done",
    "restoring": "reading a checkpoint",
    "replaying": "getting the data back to its position",
    "lost": "training that had to be done again",
    "down": "between two attempts",
}
CROSS = Key("attempt ended early", "fault", path="M8 3L18 13M18 3L8 13", hollow=True)


def page_of(facts: RunFacts) -> Page:
    """The page of one run."""
    goodput = facts.goodput
    first, last = goodput.attempts[0], goodput.attempts[-1]
    about = f"{_utc(first.started)} to {_utc(last.ended)}, {facts.state}"
    sections = [
        _time(facts),
        _timeline(facts),
        *_metrics(facts),
        *_saves(facts),
        _faults(facts),
        *_environment(facts),
    ]
    return Page(facts.name, about, tiles(facts), sections)


def tiles(facts: RunFacts) -> list[Tile]:
    """The numbers at the top of the page."""
    goodput = facts.goodput
    lost = f"{goodput.lost_steps:,} trained again"
    ended = sum(each.outcome not in ("ended", "unknown") for each in goodput.attempts)
    count = facts.save_costs()["count"]
    loss = facts.last_metrics.get("loss")
    found = [
        Tile("goodput", f"{goodput.share:.1%}", f"of {duration(goodput.whole)}"),
        Tile("steps", f"{goodput.steps:,}", lost),
        Tile("attempts", f"{len(goodput.attempts):,}", f"{ended:,} ended early"),
        Tile("faults", f"{len(facts.faults):,}"),
        Tile("saves", f"{count:,}", f"{goodput.postponed:,} postponed"),
    ]
    return found if loss is None else [*found, Tile("loss", f"{loss:.4g}", "last")]


def _part_keys(parts: Mapping[str, float]) -> list[Key]:
    """The legend of the parts of the time that occur."""
    return [
        Key(name, f"part-{name}", height=PARTS[name][2])
        for name, seconds in parts.items()
        if seconds
    ]


def _utc(seconds: float) -> str:
    """A time in UTC, to be read by people."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def _time(facts: RunFacts) -> Section:
    parts, whole = facts.goodput.parts, facts.goodput.whole
    rows = [
        (name, duration(seconds), f"{seconds / whole if whole else 0:.1%}", meaning)
        for name, meaning in _MEANS.items()
        for seconds in [parts[name]]
    ]
    caption = "How the time of all attempts divides into parts"
    columns = ("part", "time", "share", "is")
    table = Table("parts", caption, columns, rows, right=("time", "share"))
    chart = charts.shares(parts)
    figure = Figure("chart-parts", caption, chart, _part_keys(parts))
    return Section("Where the time went", [figure] if whole else [], [table])


def _timeline(facts: RunFacts) -> Section:
    chart, drawn = charts.attempts(facts)
    caption = "What each attempt was doing, and when; the first one on top"
    keys = [*_part_keys(facts.goodput.parts), CROSS]
    figure = Figure("chart-timeline", caption, chart, keys, _not_drawn(drawn))
    every = list(enumerate(facts.goodput.attempts, 1))
    rows = [
        (
            f"{number:,}",
            _utc(each.started),
            duration(each.ended - each.started),
            f"{each.restored or 0:,}",
            "" if each.repeated is None else f"{each.repeated:,}",
            f"{each.step:,}",
            each.outcome,
            each.host,
        )
        for number, each in every[-_ROWS:]
    ]
    columns = (
        *("attempt", "started", "time", "from step", "repeated", "to step"),
        *("end", "host"),
    )
    right = ("attempt", "time", "from step", "repeated", "to step")
    table = Table("attempts", "Attempts", columns, rows, right)
    notes = _left_out(len(every), "attempts")
    return Section("Attempts", [figure] if drawn.bars else [], [table], notes)


def _not_drawn(drawn: Timeline) -> str:
    notes = []
    if drawn.first:
        notes.append(f"The last {MOST_ATTEMPTS} attempts are drawn.")
    if drawn.narrowest:
        narrow = f"{drawn.narrowest:.2g} s"
        notes.append(f"Bars shorter than {narrow} are drawn with their neighbours.")
    return " ".join(notes)


def _left_out(count: int, what: str) -> list[str]:
    """The note below a table that does not list everything."""
    return [f"The last {_ROWS} of {count:,} {what} are listed."] * (count > _ROWS)


def _metrics(facts: RunFacts) -> list[Section]:
    if not facts.logged:
        return []
    every = curves(facts.logged)
    drawable = (curve for curve in every if curve.points)
    groups = [list(group) for _, group in groupby(drawable, key=lambda c: c.group)]
    figures = [
        _metric(f"chart-metric-{number}", group, facts)
        for number, group in enumerate(groups[:MOST_CHARTS], 1)
    ]
    rows = [_row(curve.name, facts.logged, curve) for curve in every[:_ROWS]]
    columns = ("metric", "first", "lowest", "highest", "last", "numbers")
    table = Table("metrics", "Metrics", columns, rows, right=columns[1:])
    notes = _odd_of(every)
    if len(groups) > MOST_CHARTS:
        notes.append(f"{MOST_CHARTS} of {len(groups):,} metrics are drawn.")
    if any(each.attempt < 0 for each in facts.logged):
        notes.append("They come from the checkpoints that remain.")
    tables = [table, _logged(facts.logged)]
    notes += _left_out(len(facts.logged), "moments")
    return [Section("Metrics across restarts", figures, tables, notes)]


def _metric(name: str, group: Sequence[Curve], facts: RunFacts) -> Figure:
    drawn = list(group)[: len(SERIES)]
    chart = charts.metric(drawn, facts)
    keys = [
        Key(curve.name, f"series-{color}", dash=_dash_of(number))
        for number, (curve, color) in enumerate(zip(drawn, SERIES, strict=False))
    ]
    caption = f"{group[0].group} at each step; a dashed rule where an attempt ended"
    return Figure(name, caption, chart, [*keys, CROSS], _note_of(drawn))


def _dash_of(number: int) -> str:
    """The dash pattern of a line, in SVG's syntax."""
    return " ".join(map(str, DASHES[number])) if number else ""


def _note_of(drawn: Sequence[Curve]) -> str:
    """The note on what a chart of curves leaves out."""
    hidden = sum(curve.count - curve.odd - len(curve.points) for curve in drawn)
    every = sum(curve.count for curve in drawn)
    return f"The extremes of {every:,} numbers are drawn." if hidden else ""


def _odd_of(every: Sequence[Curve]) -> list[str]:
    """The note on values that no chart shows."""
    odd = sum(curve.odd for curve in every)
    return [f"{odd:,} numbers are not finite, or too large to draw."] * bool(odd)


def _row(name: str, logged: Sequence[Logged], curve: Curve) -> tuple[str, ...]:
    values = [each.metrics[name] for each in logged if name in each.metrics]
    finite = [value for value in values if math.isfinite(value)] or values
    ends = (values[0], min(finite), max(finite), values[-1])
    return name, *(f"{value:.4g}" for value in ends), f"{curve.count:,}"


def _logged(logged: Sequence[Logged]) -> Table:
    rows = [
        (
            f"{each.step:,}",
            f"{each.epoch:,}" if not each.batch else f"in {each.epoch + 1:,}",
            f"{each.attempt + 1:,}" if each.attempt >= 0 else "",
            metrics(each.metrics),
        )
        for each in logged[-_ROWS:]
    ]
    columns = ("step", "epoch", "attempt", "metrics")
    caption = "All that was recorded"
    return Table("logged", caption, columns, rows, columns[:3], folded=True)


def _saves(facts: RunFacts) -> list[Section]:
    if not facts.saves:
        return []
    costs, dots = facts.save_costs(), "M13 4a4 4 0 1 0 .01 0Z"
    seconds, sizes, drawn = charts.saves(facts)
    keys = [
        Key("written in the background", "series-first", path=dots),
        Key("training waited", "series-second", path="M9 4h8v8h-8Z"),
    ]
    note = f"{drawn:,} of {len(facts.saves):,} saves are drawn."
    note = note if drawn < len(facts.saves) else ""
    figures = [
        Figure("chart-saves", "Seconds that each save took", seconds, keys, note),
        Figure("chart-sizes", "The size of each checkpoint", sizes),
    ]
    rows = [
        ("saves", f"{costs['count']:,}"),
        ("written in (median)", f"{costs['seconds']['median']:.3f} s"),
        ("written in (longest)", f"{costs['seconds']['longest']:.3f} s"),
        ("training waited, in all", f"{costs['stalls']:.3f} s"),
        ("size (median)", size(costs["nbytes"]["median"])),
        ("size (largest)", size(costs["nbytes"]["largest"])),
        ("postponed", f"{facts.goodput.postponed:,}"),
        ("last", _utc(costs["last"])),
    ]
    table = Table("saves", "Costs of saves", ("saves", "value"), rows)
    return [Section("Saves", figures, [table])]


def _faults(facts: RunFacts) -> Section:
    rows = [
        (
            fault.kind,
            _utc(fault.time),
            "" if fault.attempt is None else f"{fault.attempt:,}",
            "" if fault.step is None else f"{fault.step:,}",
            fault.why or "not known",
        )
        for fault in facts.faults[-_ROWS:]
    ]
    if not rows:
        return Section("Faults", notes=["None."])
    columns = ("fault", "at", "attempt", "step", "reason")
    table = Table("faults", "Faults", columns, rows, right=("attempt", "step"))
    return Section("Faults", (), [table], _left_out(len(facts.faults), "faults"))


def _environment(facts: RunFacts) -> list[Section]:
    tables = []
    if facts.environment:
        versions = [*facts.environment.items()]
        caption = "At the first start"
        tables.append(Table("environment", caption, ("name", "version"), versions))
    rows = [
        (change.name, f"{change.attempt:,}", change.before, change.after)
        for change in facts.changes[-_ROWS:]
    ]
    columns = ("changed", "attempt", "before", "after")
    notes = _left_out(len(facts.changes), "changes")
    if rows:
        caption = "What changed between attempts"
        tables.append(Table("changes", caption, columns, rows, ("attempt",)))
    elif facts.environment:
        notes.append("Nothing changed between attempts.")
    return [Section("Environment", (), tables, notes)] if tables else []
