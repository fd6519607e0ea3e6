"""Draws a report as a picture for a paper: the main charts, one below the other."""

from collections.abc import Sequence
from itertools import groupby

import altair as alt

from resilient.report import charts
from resilient.report.charts import Chart
from resilient.report.curves import curves
from resilient.report.facts import RunFacts
from resilient.report.look import SERIES, Look

_METRICS = 2
_SCALE = 2  # image pixels per chart pixel


def png(runs: Sequence[RunFacts]) -> bytes:
    """The picture of one run, or of several, as PNG.

    Args:
        runs: The runs, at least one; for several, only shares and losses are drawn.
    """
    from vl_convert import vegalite_to_png

    look = Look(on_page=False)
    drawn = _of_one(runs[0], look) if len(runs) == 1 else _of_several(runs, look)
    apart = dict.fromkeys(("color", "size", "strokeDash", "shape"), "independent")
    whole = alt.vconcat(*drawn).resolve_scale(**apart)
    spec = whole.to_dict() | {"config": look.config()}
    from altair.utils._importers import vl_version_for_vl_convert as version

    return bytes(vegalite_to_png(spec, vl_version=version(), scale=_SCALE))


def _of_one(run: RunFacts, look: Look) -> list[Chart]:
    timeline, _ = charts.attempts(run, look)
    found = [timeline.properties(title="Attempts")]
    drawable = (curve for curve in curves(run.logged) if curve.points)
    every = groupby(drawable, key=lambda curve: curve.group)
    for group, some in [(name, list(of)) for name, of in every][:_METRICS]:
        chart = charts.metric(some[: len(SERIES)], run, look)
        found.append(chart.properties(title=group))
    return found


def _of_several(runs: Sequence[RunFacts], look: Look) -> list[Chart]:
    parts = {run.name: run.goodput.parts for run in runs}
    found = [charts.shares(parts, look).properties(title="Where the time went")]
    losses = {
        run.name: curve
        for run in runs[-len(SERIES) :]
        for curve in curves(run.logged)
        if curve.name == "loss" and curve.points
    }
    if losses:
        chart = charts.curve_chart(losses, look, title="loss", of="run")
        found.append(charts.finished(chart, look, height=240))
    return found
