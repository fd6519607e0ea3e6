"""How long until the first batch, of a new run and of one that resumes?

    KERAS_BACKEND=jax python benchmarks/start/run.py [--models 3x10 1000x10] [--write]

In turn, each in a new process: `model.fit`; `resilient.fit` of a new run; and the same
script again, which resumes after an epoch. Printed are, with quartiles, the ratio to
`model.fit` and how many milliseconds more it is: from the call of `fit` to the first
batch and to its end, the whole fit of 20 batches, and, of the resumed run, from the
start of the process to the end of its first batch. Of that, the time of a warm read of
the checkpoint's files is given beside it. `100x10` is a model of 100 layers with 10 MB
of state. One of 1,000 layers takes minutes, mostly to be traced.

Bytecode is written first: a library that is installed has it.
"""

import argparse
import compileall
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
import figures
import machine
from paired import summary
from rich.console import Console
from rich.progress import track
from rich.table import Table

import resilient

NAME = "start"
BACKEND = os.environ.get("KERAS_BACKEND", "tensorflow")
_CHILD = Path(__file__).with_name("child.py")
_ROWS = {
    "to_begin": "call of `fit` to the first batch",
    "to_end": "call of `fit` to its end",
    "whole": "whole fit of 20 batches",
    "process": "start of the process to the first batch's end",
    "resumed": "the same, resumed",
}
_HEADS = ("first batch", "its end", "whole fit", "process", "process, resumed")
Sizes = tuple[int, float]  # layers, and megabytes of state
_MODELS = [(3, 10.0), (100, 10.0)]


def model(text: str) -> Sizes:
    """The sizes that an option gives, as `100x10`."""
    layers, megabytes = text.split("x")
    return int(layers), float(megabytes)


def sample(way: str, sizes: Sizes, directory: Path, epochs: int) -> dict[str, float]:
    """Seconds of one fit in a new process."""
    sized = map(str, sizes)
    begun = str(time.monotonic())
    command = [sys.executable, os.fspath(_CHILD), begun, way, *sized]
    done = subprocess.run(
        [*command, os.fspath(directory), str(epochs)],
        env={"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ},
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    if found["epoch"] != epochs - 1:
        raise RuntimeError(f"it began at epoch {found['epoch']}")
    return found


def warm_read(directory: Path) -> float:
    """Seconds to read all files of the checkpoints, which are in the system's cache."""
    paths = [path for path in directory.rglob("*") if path.is_file()]
    begun = time.perf_counter()
    for path in paths:
        path.read_bytes()
    return time.perf_counter() - begun


def measure(sizes: Sizes, pairs: int) -> dict[str, Any]:
    """All rows of one model."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in _ROWS}
    reads = []
    what = f"{BACKEND}, {sizes[0]} layers, {sizes[1]:g} MB"
    for pair in track(range(pairs + 1), what, console=Console(stderr=True)):
        directory = Path(tempfile.mkdtemp())
        try:
            found = {}
            for way in ("plain", "ours") if pair % 2 else ("ours", "plain"):
                found[way] = sample(way, sizes, directory, 1)
            read = warm_read(directory)
            resumed = sample("ours", sizes, directory, 2)
        finally:
            shutil.rmtree(directory)
        if not pair:  # warms up
            continue
        reads.append(read)
        for name in list(_ROWS)[:-1]:
            times[name].append((found["ours"][name], found["plain"][name]))
        times["resumed"].append((resumed["process"], found["plain"]["process"]))
    rows = {
        name: summary(*zip(*spent, strict=True))
        | {"more": statistics.median(ours - plain for ours, plain in spent)}
        for name, spent in times.items()
    }
    read = statistics.median(reads)
    return {"layers": sizes[0], "megabytes": sizes[1], "read": read, "rows": rows}


def lines(found: dict[str, Any]) -> Iterator[Sequence[str]]:
    """The cells of one model."""
    size = f"{found['layers']:,} layers, {found['megabytes']:,g} MB"
    for name, one in found["rows"].items():
        plain = f"{one['limit'] * 1e3:,.0f} ms"
        more = f"{one['more'] * 1e3:,.0f} ms"
        if name == "resumed":
            more += f" (read: {found['read'] * 1e3:,.0f} ms)"
        yield size, _ROWS[name], plain, figures.ratio(one), more


def write() -> None:
    """Make the table of the documentation anew."""
    rows, notes = [], []
    for backend, report in figures.kept(NAME).items():
        facts, name = report["machine"], figures.BACKENDS[backend]
        notes.append(f"{name}: {facts['cores']} cores of {facts['cpu']}, ")
        notes[-1] += f"{report['pairs']} pairs."
        for found in report["sizes"]:
            size = f"{found['layers']:,} layers, {found['megabytes']:,g} MB"
            cells = [
                f"{figures.ratio(one)}, {one['more'] * 1e3:+,.0f} ms"
                for one in found["rows"].values()
            ]
            rows.append([f"{name}, {size}", *cells])
    made = figures.table(["", *_HEADS], rows)
    figures.show("starting-and-resuming.md", NAME, [*made, "", " ".join(notes)])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--models", type=model, nargs="*", default=_MODELS)
    figures.add_options(parser)
    options = parser.parse_args()
    compileall.compile_dir(Path(resilient.__file__).parent, quiet=1)
    facts = machine.facts(tempfile.gettempdir())
    report: dict[str, Any] = {"backend": BACKEND, "machine": facts}
    report |= {"pairs": options.pairs, "sizes": []}
    console = Console(width=130)
    console.print(machine.words(facts))
    table = Table(title=BACKEND, title_justify="left")
    for head in ("model", "", "model.fit", "ratio", "more"):
        table.add_column(head)
    for sizes in options.models:
        found = measure(sizes, options.pairs)
        report["sizes"].append(found)
        for cells in lines(found):
            table.add_row(*cells)
    console.print(table)
    figures.finish(options, NAME, report, write)


if __name__ == "__main__":
    main()
