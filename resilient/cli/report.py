"""``resilient report`` and ``watch``: what a run did, or several runs, a line for each.

If its output is a file or a pipe, ``watch`` prints one snapshot and exits. It does the
same for a run in an object store, where no heartbeat is kept.
"""

import argparse
import contextlib
import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resilient.cli.arguments import RUN, Add, nothing
from resilient.cli.commands import OK, Result
from resilient.cli.style import BAD, console, say, table
from resilient.display import duration, metrics
from resilient.errors import NotSupportedError
from resilient.report import tables
from resilient.report.facts import RunFacts, read_facts
from resilient.report.page import page_of
from resilient.serialization import JSON
from resilient.storage.layout import EVENTS, HEARTBEAT
from resilient.storage.store import Store
from resilient.storage.stores import open_readonly
from resilient.telemetry.events import read_events

if TYPE_CHECKING:
    from rich.table import Table

_EVERY = 2.0  # seconds
_DEPTH = 3
_NO_RUNS = re.compile(r"\..*|quarantine|step-\d.*")
# By directory: the versions of the files that were read, and the facts in them.
_Known = dict[Path, tuple[object, RunFacts | None]]
_RUNS: dict[str, Any] = RUN | {"help": "a checkpoint_dir, or a directory of several"}


def add_to(add: Add) -> None:
    """Add the commands to the others."""
    text = "Show how a run spent its time, or several runs side by side."
    report = add("report", _report, text)
    report.add_argument("location", **_RUNS)
    page = "also write a self-contained HTML page of one run, with charts"
    report.add_argument("--html", metavar="FILE", type=Path, help=page)
    text = "Watch the runs of a directory live, until Ctrl-C."
    add("watch", _watch, text).add_argument("location", **_RUNS)


def _report(arguments: argparse.Namespace) -> Result:
    with open_readonly(arguments.location.directory) as store:
        found, unreadable = _read(store, {})
    alone, page = found[0].name == str(store), arguments.html
    if page is not None and not alone:
        raise NotSupportedError(
            "A page is of one run.",
            received=str(store),
            hint="Name one of the runs in it: `resilient report` lists them.",
        )
    if page is not None:
        page.write_text(page_of(found[0]), "utf-8")
    if not alone:
        return _lines(store, found, unreadable)

    def words(_: JSON) -> None:
        _show(found[0])
        if page is not None:
            say(f"wrote {page}")

    return OK, {"directory": str(store), **found[0].to_json()}, words


def _watch(arguments: argparse.Namespace) -> Result:
    from rich.live import Live

    known: _Known = {}
    with open_readonly(arguments.location.directory) as store:
        found, unreadable = _read(store, known)
        live = type(store) is Store and console().is_terminal and not arguments.json
        if live:
            with Live(console=console(), auto_refresh=False) as shown:
                while True:
                    shown.update(_several(_read(store, known)[0]), refresh=True)
                    time.sleep(_EVERY)
    return _lines(store, found, unreadable)


def _lines(
    store: Store, found: Sequence[RunFacts], unreadable: Sequence[JSON]
) -> Result:
    """A line for each run."""
    data = {
        "directory": str(store),
        "runs": [run.to_json() for run in found],
        "unreadable": unreadable,
    }

    def words(_: JSON) -> None:
        say(_several(found))
        for each in unreadable:
            say(f"unreadable: {each['name']}: {each['message']}", BAD)

    return OK, data, words


def _read(store: Store, known: _Known) -> tuple[list[RunFacts], list[JSON]]:
    """The run of a directory, or those below it; and directories that cannot be read.

    Args:
        store: Of the directory.
        known: What was read before, and is not read again while its files are the same.

    Raises:
        CheckpointNotFoundError: There is none.
    """
    top, unreadable = store.directory, list[JSON]()
    if (own := _facts(top, str(store), known)) is not None:
        return [own], []
    below = _runs_below(top, unreadable)
    every = [_facts(path, os.path.relpath(path, top), known) for path in below]
    found = [run for run in every if run is not None]
    if not found:
        next(read_events(top, all_of_them=True), None)  # raises the cause
        raise nothing("No events of a run can be read in", store)
    return found, unreadable


def _facts(path: Path, name: str, known: _Known) -> RunFacts | None:
    versions = [_version(path / each) for each in (EVENTS, HEARTBEAT)]
    if path not in known or known[path][0] != versions:
        known[path] = versions, read_facts(path, name)
    return known[path][1]


def _version(path: Path) -> tuple[int, int] | None:
    with contextlib.suppress(OSError):
        found = os.stat(path)
        return found.st_size, found.st_mtime_ns
    return None


def _runs_below(top: Path, unreadable: list[JSON]) -> Iterator[Path]:
    """The runs' directories, three levels deep, by name; follows no links."""

    def note(error: OSError) -> None:
        name = os.path.relpath(error.filename, top)
        unreadable.append({"name": name, "message": error.strerror})

    for name, directories, files in os.walk(top, onerror=note):
        path = Path(name)
        depth = len(path.relative_to(top).parts)
        if depth and EVENTS in files:
            yield path
        may_hold = [each for each in directories if not _NO_RUNS.fullmatch(each)]
        directories[:] = sorted(may_hold) if depth < _DEPTH else []


def _show(facts: RunFacts) -> None:
    """Print the report on one run."""
    goodput = facts.goodput
    say(f"goodput {goodput.share:.1%} of {duration(goodput.whole)}")
    parts, *others = tables.parts(facts), tables.attempts(facts), tables.faults(facts)
    say(table(parts.columns, parts.rows))
    for line in tables.lines(facts):
        say(line)
    for each in others:
        if each.rows:
            say(table(each.columns, each.rows))


def _several(runs: Sequence[RunFacts]) -> "Table":
    """A row for each run."""
    columns = "run state step epoch saved goodput time attempts faults metrics"
    rows = []
    for run in runs:
        goodput, state = run.goodput, run.state
        phase = f", {run.beat.phase}" if run.beat and state == "alive" else ""
        row = (
            run.name,
            state + phase,
            f"{goodput.steps:,}",
            "" if run.epoch is None else f"{run.epoch:,}",
            tables.utc(run.saves[-1].time) if run.saves else "never",
            f"{goodput.share:.1%}",
            duration(goodput.whole),
            f"{len(goodput.attempts):,}",
            f"{len(run.faults):,}",
            metrics(run.last_metrics),
        )
        rows.append(row)
    return table(columns.split(), rows)
