"""How many seconds pass from SIGKILL to the next new batch, and where do they go?

    python benchmarks/recovery/run.py [jax torch ...] [--pairs 4] [--write]

On each backend a training is killed in the middle of an epoch and started again, over
and over: saved by Keras's `BackupAndRestore`, by its `OrbaxCheckpoint`, and by
`resilient.fit`, in turn, all every 10 batches; on JAX also by `resilient.fit` that
keeps nothing of what JAX compiles. Each life is a new process:

* imports: the interpreter, Keras, its backend, and what saves;
* model: it is built and compiled, and the data is made;
* restoring: from the call of `fit`, or of what loads before it, to the first batch;
* first batch: mostly tracing and compiling;
* replay: until a batch is trained that no earlier life had trained. Keras's callbacks
  begin the epoch again.

Printed are the medians of each part, the ratio of the whole to BackupAndRestore's in
the same turn, and our own share: how much later our first batch ends than theirs, as a
part of the time they need for that, and the same in time of the processor, which other
processes disturb less. On JAX that is without what was kept of compiling.

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
from itertools import pairwise
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

NAME = "recovery"
PEER = "BackupAndRestore"
OURS, COLD = "keras-resilient", "keras-resilient, `keep_compiled=False`"
_CHILD = Path(__file__).with_name("child.py")
_TIMES = ("begun", "imported", "built", "called", "first", "next")
PARTS = ("imports", "model", "restoring", "first batch", "replay")
_ALT = "The table above as bars, one for each way to save, made of its parts"
_HEADS = ("seconds", *PARTS, "whole", "/ BackupAndRestore")


def ways(backend: str) -> list[str]:
    """How the training is saved, in turn."""
    return [PEER, "OrbaxCheckpoint", *[COLD] * (backend == "jax"), OURS]


def life(
    backend: str, way: str, sizes: Sequence[float], directory: Path, *, resumes: bool
) -> dict[str, float]:
    """When a new process, which is killed in the end, got how far."""
    begun = str(time.monotonic())
    command = [sys.executable, os.fspath(_CHILD), begun, way, *map(str, sizes)]
    done = subprocess.run(
        [*command, os.fspath(directory), *["resumes"] * resumes],
        env={
            "TF_CPP_MIN_LOG_LEVEL": "3",
            **os.environ,
            "KERAS_BACKEND": backend,
        },
        capture_output=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    found = json.loads(lines[-1]) if lines else {}
    if resumes != ("next" in found):
        raise RuntimeError(f"{backend}, {way}: {done.stderr.decode()[-2000:]}")
    return found


def seconds(times: dict[str, float]) -> dict[str, float]:
    """Of each part, and of more than one."""
    spent = {
        part: times[end] - times[begin]
        for part, (begin, end) in zip(PARTS, pairwise(_TIMES), strict=True)
    }
    spent["to first"] = times["first"] - times["begun"]
    return spent | {"whole": times["next"] - times["begun"], "cpu": times["cpu"]}


def measure(backend: str, sizes: Sequence[float], pairs: int) -> dict[str, Any]:
    """All ways of a backend."""
    spent: dict[str, list[dict[str, float]]] = {way: [] for way in ways(backend)}
    home = Path(tempfile.mkdtemp())
    try:
        for turn in track(range(pairs + 1), backend, console=Console(stderr=True)):
            for way in list(spent)[:: 1 if turn % 2 else -1]:
                directory = home / str(list(spent).index(way))
                times = life(backend, way, sizes, directory, resumes=turn > 0)
                if turn:
                    spent[way].append(seconds(times))
    finally:
        shutil.rmtree(home)
    rows = {}
    for way, each in spent.items():
        both = list(zip(each, spent[PEER], strict=True))
        parts = {part: statistics.median(one[part] for one in each) for part in each[0]}
        rows[way] = {"parts": parts} | {
            name: summary([a[name] for a, _ in both], [b[name] for _, b in both])
            for name in ("whole", "to first", "cpu")
        }
    return {"backend": backend, "rows": rows, "pairs": pairs}


def lines(found: dict[str, Any]) -> Iterator[Sequence[str]]:
    """The cells of one backend."""
    name = figures.BACKENDS[found["backend"]]
    for way, row in found["rows"].items():
        cells = [f"{row['parts'][part]:.2f}" for part in (*PARTS, "whole")]
        shown = f"**{way}**" if way == OURS else way
        yield f"{name}, {shown}", *cells, figures.ratio(row["whole"])


def share(found: dict[str, Any]) -> str:
    """What we add until the first batch has ended."""
    row = found["rows"].get(COLD, found["rows"][OURS])
    found = []
    for name in ("to first", "cpu"):
        low, middle, high = (f"{each - 1:+.1%}" for each in row[name]["quartiles"])
        found.append(f"{middle} ({low} to {high})")
    return f"{found[0]} of the time, {found[1]} of the processor's"


def write() -> None:
    """Make the table of the documentation anew."""
    rows, notes = [], []
    for backend, report in figures.kept(NAME).items():
        facts, name = report["machine"], figures.BACKENDS[backend]
        rows += lines(report)
        notes.append(
            f"* {name}: our own share {share(report)}; {facts['cores']} cores of "
            f"{facts['cpu']}, load {facts['load'][0]:.1f}, {report['pairs']} kills."
        )
    made = [*figures.table(_HEADS, rows), "", *notes]
    for scheme in ("light", "dark"):
        made += ["", f"```{{image}} pictures/recovery-{scheme}.svg"]
        made += [f":alt: {_ALT}", f":class: only-{scheme}", "```"]
    figures.show("starting-and-resuming.md", NAME, made)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("backends", nargs="*", default=list(figures.BACKENDS))
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--megabytes", type=float, default=30, help="of state")
    figures.add_options(parser)
    options = parser.parse_args()
    compileall.compile_dir(Path(resilient.__file__).parent, quiet=1)
    sizes = options.layers, options.megabytes
    console = Console(width=130)
    for backend in options.backends:
        facts = machine.facts(tempfile.gettempdir())
        console.print(machine.words(facts))
        report = measure(backend, sizes, options.pairs) | {"machine": facts}
        table = Table(*_HEADS, title=backend, title_justify="left")
        for cells in lines(report):
            table.add_row(*cells)
        console.print(table)
        console.print(f"Our own share: {share(report)}")
        figures.finish(options, NAME, report, write)


if __name__ == "__main__":
    main()
