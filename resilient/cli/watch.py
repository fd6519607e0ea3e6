"""``resilient watch``: a directory's runs in a terminal, kept up to date.

If the output is a file or a pipe, it prints one snapshot and exits. It does the same
for a run in an object store, where no heartbeat is kept.
"""

import argparse
import os
import time
from pathlib import Path
from typing import Any

from resilient.cli.commands import OK, nothing
from resilient.cli.convert import Add
from resilient.cli.report_text import STYLES, utc
from resilient.cli.runs import RunSearch
from resilient.cli.style import Rows, console, in_terminal, when
from resilient.report.facts import RunFacts, read_facts
from resilient.serialization import JSON
from resilient.serialization.schema import strict
from resilient.storage.layout import EVENTS, HEARTBEAT
from resilient.storage.store import Store

_EVERY = 2.0  # seconds


def add_to(add: Add) -> None:
    """Add the command to the others."""
    text = "Watch the runs of a directory live, until Ctrl-C."
    command = add("watch", _watch, lambda _: None, text)
    command.set_defaults(report=_show, watched=None)


def _watch(store: Store, arguments: argparse.Namespace) -> tuple[int, JSON]:
    watched = Watched(store)
    runs = [_told(run) for run in watched.runs()]
    if not runs:
        raise nothing("No events of a run can be read in", store)
    if in_terminal() and type(store) is Store:
        arguments.watched = watched
    return OK, {"directory": str(store), "runs": runs}


def _show(data: JSON, arguments: argparse.Namespace) -> None:
    if arguments.watched is None:
        _table(data["runs"]).print()
        return
    from rich.live import Live

    with Live(console=console(), auto_refresh=False) as live:
        while True:
            runs = [_told(run) for run in arguments.watched.runs()]
            live.update(_table(runs).table, refresh=True)
            time.sleep(_EVERY)


class Watched:
    """The runs of a directory, read again when something may have changed.

    Args:
        store: The store of a run, or of a directory of runs.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[Path, tuple[object, RunFacts | None]] = {}

    def runs(self) -> list[RunFacts]:
        """The current facts about each run."""
        own = self._facts(self._store.directory, str(self._store))
        if own is not None:
            return [own]
        found = (
            self._facts(path, os.fspath(path.relative_to(self._store.directory)))
            for path in RunSearch(self._store.directory).found()
        )
        return [run for run in found if run is not None]

    def _facts(self, path: Path, name: str) -> RunFacts | None:
        now = [_version(path / each) for each in (EVENTS, HEARTBEAT)]
        before, run = self._known.get(path, (None, None))
        over = run is None or run.goodput.attempts[-1].outcome != "unknown"
        if before != now or not over:  # a live run may die silently
            run = read_facts(Store(path), name)
            self._known[path] = now, run
        return run


def _version(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def _told(run: RunFacts) -> JSON:
    saves, beat = run.save_costs(), run.beat
    loss = run.last_metrics.get("loss")
    return {
        "name": run.name,
        "state": run.state,
        "phase": None if beat is None else beat.phase,
        "step": run.goodput.steps if beat is None else beat.step,
        "epoch": run.epoch,
        "loss": None if loss is None else strict(loss),
        "saved": saves.get("last"),
        "goodput": run.goodput.share,
        "attempts": len(run.goodput.attempts),
        "faults": len(run.faults),
    }


def _table(runs: list[JSON]) -> Rows:
    rows = Rows(
        *("run", "state", "phase", "step", "epoch", "loss", "saved", "goodput"),
        *("attempts", "faults"),
    )
    for run in runs:
        rows.add(
            run["name"],
            run["state"],
            (run["phase"] or "") if run["state"] in ("alive", "silent") else "",
            f"{run['step']:,}",
            _given(run["epoch"], ","),
            _given(None if run["loss"] is None else float(run["loss"]), ".4g"),
            "never" if run["saved"] is None else when(utc(run["saved"])),
            f"{run['goodput']:.1%}",
            f"{run['attempts']:,}",
            f"{run['faults']:,}",
            style=STYLES.get(run["state"], ""),
        )
    return rows


def _given(value: Any, form: str) -> str:
    return "" if value is None else format(value, form)
