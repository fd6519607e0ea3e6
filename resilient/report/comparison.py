"""Compares several runs on one page: a row, a bar and a line for each."""

from collections.abc import Sequence

from resilient.display import duration, metrics
from resilient.report import charts
from resilient.report.curves import MOST_CHARTS, Curve, curves
from resilient.report.facts import RunFacts
from resilient.report.look import SERIES, Look
from resilient.report.page import Figure, Key, Page, Section, Table, Tile
from resilient.report.sections import dash_of, left_out, note_of, odd_of, part_keys, utc

_ROWS = 500
_MOST_BARS = 40
_COLUMNS = (
    *("run", "state", "goodput", "time", "step", "epoch", "attempts", "faults"),
    *("last save", "metrics"),
)


def page_of_several(name: str, runs: Sequence[RunFacts]) -> Page:
    """The page of several runs.

    Args:
        name: The name of the directory.
        runs: The runs, at least one.
    """
    states = [run.state for run in runs]
    counts = {state: states.count(state) for state in dict.fromkeys(states)}
    tiles = [Tile("runs", f"{len(runs):,}")]
    tiles += [Tile(state, f"{count:,}") for state, count in counts.items()]
    since = min(run.goodput.attempts[0].started for run in runs)
    until = max(run.goodput.attempts[-1].ended for run in runs)
    about = f"{utc(since)} to {utc(until)}"
    look = Look(on_page=True)
    sections = [_runs(runs), _shares(runs, look), *_metrics(runs, look)]
    return Page(name, about, tiles, sections)


def _runs(runs: Sequence[RunFacts]) -> Section:
    table = Table(
        *("runs", "Runs", _COLUMNS, [_row(run) for run in runs[-_ROWS:]]),
        right=_COLUMNS[2:8],
    )
    return Section("Runs", (), [table], left_out(len(runs), "runs"))


def _row(run: RunFacts) -> tuple[str, ...]:
    goodput, costs = run.goodput, run.save_costs()
    return (
        run.name,
        run.state,
        f"{goodput.share:.1%}",
        duration(goodput.whole),
        f"{goodput.steps:,}",
        "" if run.epoch is None else f"{run.epoch:,}",
        f"{len(goodput.attempts):,}",
        f"{len(run.faults):,}",
        utc(costs["last"]) if costs["count"] else "never",
        metrics(run.last_metrics),
    )


def _shares(runs: Sequence[RunFacts], look: Look) -> Section:
    drawn = {run.name: run.goodput.parts for run in runs[-_MOST_BARS:]}
    caption = "How the time of each run divides into parts"
    sums = dict.fromkeys(next(iter(drawn.values())), 0.0)
    for parts in drawn.values():
        sums = {part: sums[part] + seconds for part, seconds in parts.items()}
    note = f"The last {_MOST_BARS} runs are drawn." if len(runs) > _MOST_BARS else ""
    chart = charts.shares(drawn, look)
    figure = Figure("chart-parts", caption, chart, part_keys(sums), note)
    columns = ("run", *sums)
    rows = [(name, *map(duration, parts.values())) for name, parts in drawn.items()]
    table = Table("parts", caption, columns, rows, right=columns[1:])
    return Section("Where the time went", [figure], [table])


def _metrics(runs: Sequence[RunFacts], look: Look) -> list[Section]:
    """A chart for each metric, with a line for each of the latest runs that have it."""
    found: dict[str, dict[str, Curve]] = {}
    every = [(run.name, curve) for run in runs for curve in curves(run.logged)]
    for run_name, curve in every:
        if curve.points:
            found.setdefault(curve.name, {})[run_name] = curve
    figures = []
    for number, (metric, of_runs) in enumerate([*found.items()][:MOST_CHARTS], 1):
        drawn = dict([*of_runs.items()][-len(SERIES) :])
        chart = charts.curve_chart(drawn, look, title=metric, of="run")
        chart = charts.finished(chart, look, height=240)
        keys = [
            Key(name, f"series-{color}", dash=dash_of(at))
            for at, (name, color) in enumerate(zip(drawn, SERIES, strict=False))
        ]
        notes = [note_of([*drawn.values()])]
        if len(drawn) < len(of_runs):
            notes.append(f"The last {len(drawn)} of {len(of_runs):,} runs are drawn.")
        caption, note = f"{metric} of each run", " ".join(filter(None, notes))
        figures.append(Figure(f"chart-metric-{number}", caption, chart, keys, note))
    more = f"{MOST_CHARTS} of {len(found):,} metrics are drawn."
    notes = odd_of([curve for _, curve in every])
    notes += [more] if len(found) > MOST_CHARTS else []
    return [Section("Metrics", figures, (), notes)] if figures else []
