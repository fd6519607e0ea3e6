"""Renders a report as one HTML file that needs neither a script nor the network."""

import math
from collections.abc import Iterable, Sequence
from importlib import resources
from itertools import groupby
from xml.etree import ElementTree as ET

from resilient.display import duration
from resilient.report import charts, tables
from resilient.report.charts import End, tag
from resilient.report.facts import RunFacts, metric_of
from resilient.report.tables import Table, utc

_HUGE = 1e30  # an axis up to here would flatten all other values
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page_of(facts: RunFacts) -> str:
    """The page of one run."""
    attempts = facts.goodput.attempts
    about = f"{utc(attempts[0].started)} to {utc(attempts[-1].ended)}, {facts.state}"
    ends = [
        End(
            number,
            each.ended,
            each.step,
            f"attempt {number + 1:,}: {how} at step {each.step:,}",
        )
        for number, each in enumerate(attempts)
        for how in [facts.end_of(each)]
        if how not in ("ended", "alive", "silent", "not known")
    ]
    style = ET.Element("style")
    style.text = resources.files(__package__).joinpath("page.css").read_text("utf-8")
    head = (
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("title", f"{facts.name}: training report"),
        style,
    )
    body = (
        tag("header", tag("h1", facts.name), tag("p", about, class_="about")),
        tag("main", _tiles(facts, ends), *_sections(facts, ends)),
        tag("footer", "Made by `resilient report` from the events of the run."),
    )
    page = tag("html", tag("head", *head), tag("body", *body), lang="en")
    return "<!doctype html>\n" + ET.tostring(page, "unicode", method="html")


def _tiles(facts: RunFacts, ends: Sequence[End]) -> ET.Element:
    """The numbers at the top of the page."""
    goodput = facts.goodput
    repeated = sum(each.repeated or 0 for each in goodput.attempts)
    found = [
        ("goodput", f"{goodput.share:.1%}", f"of {duration(goodput.whole)}"),
        ("steps", f"{goodput.steps:,}", f"{goodput.lost_steps:,} trained again"),
        ("attempts", f"{len(goodput.attempts):,}", f"{len(ends):,} ended early"),
        ("repeated", f"{repeated:,}", "bit for bit"),
        ("faults", f"{len(facts.faults):,}", ""),
        ("saves", f"{len(facts.saves):,}", f"{goodput.postponed:,} postponed"),
    ]
    tiles = (
        tag("div", tag("dt", name), tag("dd", value), tag("dd", note, class_="small"))
        for name, value, note in found
    )
    return tag("dl", *tiles, class_="tiles")


def _sections(facts: RunFacts, ends: Sequence[End]) -> Iterable[ET.Element]:
    goodput, drawn = facts.goodput, bool(facts.goodput.spans)
    lines = [tag("p", line) for line in tables.lines(facts)]
    shares = [charts.shares(goodput.parts)] * drawn
    yield _section("Where the time went", *shares, _table(tables.parts(facts)), *lines)
    timeline = [charts.timeline(goodput.spans, ends)] * drawn
    yield _section("Attempts", *timeline, _table(tables.attempts(facts)))
    if facts.metrics:
        yield _section("Metrics across restarts", *_curves(facts, ends))
    if facts.saves:
        yield _section("Saves", _saves(facts))
    yield _section("Faults", _table(tables.faults(facts)))


def _curves(facts: RunFacts, ends: Sequence[End]) -> Iterable[ET.Element]:
    """A chart of each metric, in training and validation."""
    odd = 0
    for metric, names in groupby(facts.metrics, metric_of):
        curves = {}
        for name in names:
            points = facts.metrics[name]
            finite = [(a, b) for a, b in points if math.isfinite(b) and abs(b) < _HUGE]
            odd += len(points) - len(finite)
            if finite:
                curves[name] = sorted(finite)
        if curves:
            yield charts.lines(f"{metric} at each step", curves, ends)
    if odd:
        yield tag("p", f"{odd:,} numbers are not finite, or too large to draw.")


def _saves(facts: RunFacts) -> ET.Element:
    saves = [(each.step or 0, each) for each in facts.saves]
    seconds = {
        "written in the background": [(step, each.seconds) for step, each in saves],
        "training waited": [(step, each.stall) for step, each in saves],
    }
    return charts.lines("Seconds that each save took", seconds)


def _section(title: str, *content: ET.Element) -> ET.Element:
    return tag("section", tag("h2", title), *content)


def _table(table: Table) -> ET.Element:
    """A table, or a line where it has no rows."""
    if not table.rows:
        return tag("p", f"No {table.name}.")
    head = tag("tr", *(tag("th", column) for column in table.columns))
    body = (tag("tr", *(tag("td", cell) for cell in row)) for row in table.rows)
    parts = tag("thead", head), tag("tbody", *body)
    made = tag("table", tag("caption", table.name), *parts, id=table.name)
    return tag("div", made, class_="scroll", tabindex=0)
