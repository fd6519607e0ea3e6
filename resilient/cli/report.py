"""``resilient report``: what a run did, or several runs side by side."""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

from resilient.cli.commands import OK, nothing
from resilient.cli.convert import Add
from resilient.cli.report_text import report_text
from resilient.cli.runs import RunSearch
from resilient.cli.style import say
from resilient.display import size
from resilient.errors import NotSupportedError
from resilient.report import extra
from resilient.report.facts import RunFacts, read_facts
from resilient.serialization import JSON
from resilient.storage.store import Store
from resilient.telemetry.events import read_events


def add_to(add: Add) -> None:
    """Add the command to the others."""
    text = "Show how a run spent its time, or several runs side by side."
    command = add("report", _report, _print, text)
    page = "also write a self-contained HTML page of one run, with charts"
    command.add_argument("--html", metavar="FILE", type=Path, help=page)


def _report(store: Store, arguments: argparse.Namespace) -> tuple[int, JSON]:
    if arguments.html is not None:
        extra.require()
    found, search = read_facts(store), RunSearch(store.directory)
    runs = [found] if found is not None else list(facts_below(store, search))
    if not runs:
        next(read_events(store.directory, all_of_them=True), None)  # raises the cause
        raise nothing("No events of a run can be read in", store)
    data: JSON = {"directory": str(store)}
    if found is not None:
        data |= found.to_json()
    else:
        data["runs"] = [{"name": run.name, **run.to_json()} for run in runs]
        data |= {"complete": search.complete, "unreadable": search.unreadable}
    if arguments.html is not None:
        arguments.html.write_text(_page(found, store), "utf-8")
    written = [] if arguments.html is None else [str(arguments.html)]
    return OK, data | {"written": written}


def _page(run: RunFacts | None, store: Store) -> str:
    if run is None:
        raise NotSupportedError(
            "A page is of one run.",
            received=str(store),
            hint="Name one of the runs in it: `resilient report` lists them.",
        )
    from resilient.report.sections import page_of

    return page_of(run).html()


def _print(data: JSON) -> None:
    report_text(data)
    for path in data["written"]:
        say(f"wrote {path} ({size(os.path.getsize(path))})")


def facts_below(store: Store, search: RunSearch) -> Iterator[RunFacts]:
    """The facts about each run below a directory that has recorded events."""
    for path in search.found():
        name = os.fspath(path.relative_to(store.directory))
        found = read_facts(Store(path), name)
        if found is not None:
            yield found
