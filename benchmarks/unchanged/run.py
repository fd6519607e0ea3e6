"""What does a save cost of tensors that training leaves alone?

    KERAS_BACKEND=jax python benchmarks/unchanged/run.py [--megabytes 400] [--write]

Two runs save in turn: in one, all tensors have changed since its last save; in the
other, a part of them. Beside them, the raw write and fsync of as many bytes.
Printed are the ratio of the second run's save to the first one's, and of each to the
raw write, as medians with quartiles, and the bytes that a save added to the disk.
Checkpoints of the formats' own libraries hold everything each time: their ratio is 1.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import sys

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(1, str(Path(__file__).parents[1] / "save"))
import figures
import keras
import machine
import numpy as np
from limits import Limits
from paired import summary
from rich.console import Console
from rich.progress import track
from rich.table import Table

import resilient

NAME = "unchanged"
BACKEND = keras.backend.backend()
_TENSORS = 20
_WARM = 4  # saves, until there are files to link
_HEADS = (
    "unchanged",
    "all changed / raw",
    "this / raw",
    "this / all changed",
    "on disk",
)


class Run:
    """Saves of a run of which some tensors change."""

    def __init__(self, directory: Path, megabytes: float, changing: int) -> None:
        size = int(megabytes * 1e6 / 4 / _TENSORS)
        draws = np.random.default_rng(0)
        self._variables = [
            keras.Variable(draws.random(size, np.float32)) for _ in range(_TENSORS)
        ]
        self._changing, self._directory, self._step = changing, directory, 0
        self.checkpoints = resilient.Checkpoints(directory, self._variables)

    def save(self) -> tuple[float, int]:
        """Change what changes; the seconds of a save, and the bytes it added."""
        for variable in self._variables[: self._changing]:
            variable.assign(variable + 1)
        self._step += 1
        before = time.perf_counter()
        made = self.checkpoints.save(self._step)
        spent = time.perf_counter() - before
        paths = (made.path / name for name in made.files)
        found = [os.stat(path) for path in paths]
        return spent, sum(each.st_size for each in found if each.st_nlink == 1)


def measure(megabytes: float, share: float, pairs: int) -> dict[str, Any]:
    """One share of unchanged tensors."""
    all_of, some, limit = list[float](), list[float](), list[float]()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        whole = Run(directory / "whole", megabytes, _TENSORS)
        part = Run(directory / "part", megabytes, round(_TENSORS * (1 - share)))
        limits = Limits([np.ones(int(megabytes * 1e6), np.uint8)], directory)
        written = 0
        with whole.checkpoints, part.checkpoints:
            what = f"{BACKEND}, {share:.0%} unchanged"
            for pair in track(range(pairs + _WARM), what, console=Console(stderr=True)):
                runs = [(whole, all_of), (part, some)][:: 1 if pair % 2 else -1]
                for run, spent in runs:
                    seconds, written_now = run.save()
                    spent.append(seconds)
                    written = written_now if run is part else written
                limit.append(limits.write())
    all_of, some, limit = (each[_WARM:] for each in (all_of, some, limit))
    return {
        "share": share,
        "written": written,
        "whole": summary(all_of, limit),
        "part": summary(some, limit),
        "saved": summary(some, all_of),
    }


def cells(found: dict[str, Any]) -> Iterator[str]:
    """Of a row."""
    yield f"{found['share']:.0%}"
    for name in ("whole", "part", "saved"):
        yield figures.ratio(found[name])
    yield f"{found['written'] / 1e6:,.0f} MB"


def write() -> None:
    """Make the table of the documentation anew."""
    rows, notes = list[Sequence[str]](), list[str]()
    for backend, report in figures.kept(NAME).items():
        facts, name = report["machine"], figures.BACKENDS[backend]
        notes.append(
            f"{name}: {report['megabytes']:,g} MB, {facts['cores']} cores of "
            f"{facts['cpu']}, {facts['file_system']}, {report['pairs']} rounds."
        )
        rows += [[name, *cells(found)] for found in report["shares"]]
    made = figures.table(["", *_HEADS], rows)
    figures.show("frozen-layers.md", NAME, [*made, "", " ".join(notes)])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=400)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--shares", type=float, nargs="*", default=[0.5, 0.95])
    figures.add_options(parser)
    options = parser.parse_args()
    facts = machine.facts(tempfile.gettempdir())
    report: dict[str, Any] = {"backend": BACKEND, "machine": facts, "shares": []}
    report |= {"megabytes": options.megabytes, "pairs": options.pairs}
    console = Console(width=130)
    console.print(machine.words(facts))
    table = Table(*_HEADS, title=f"{BACKEND}: a save of {options.megabytes:g} MB")
    for share in options.shares:
        report["shares"].append(measure(options.megabytes, share, options.pairs))
        table.add_row(*cells(report["shares"][-1]))
    console.print(table)
    figures.finish(options, NAME, report, write)


if __name__ == "__main__":
    main()
