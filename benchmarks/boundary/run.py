"""What does a batch cost while nothing is due, and how long does a snapshot take?

    KERAS_BACKEND=jax python benchmarks/boundary/run.py [--pairs 20] [--write]

A model of two tiny layers, whose steps take a fraction of a millisecond. In turn:
`model.fit` and `resilient.fit` of arrays, with no save due; and batches of a list,
iterated as they are and with `run.batches`. Printed are the ratios of whole epochs with
quartiles, and what a batch takes longer. Then snapshots: how long training waits for
one, at the end of an epoch, where no step is in flight, and in the middle of one. Last,
what the witnesses of a step cost, in time of the processor.

Times are seen from the hooks of epochs alone: hooks of batches make JAX wait for each.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
with contextlib.suppress(ImportError):
    import torch  # noqa: F401  # before TensorFlow, or the process crashes

import figures
import keras
import machine
import numpy as np
import witnesses
from paired import summary
from rich.console import Console
from rich.progress import track
from rich.table import Table

import resilient

NAME = "boundary"
BACKEND = keras.backend.backend()
_FEATURES, _BATCH = 16, 32
_EPOCHS = 3  # in a fit; the first, which traces, is not counted
_NEVER = 10**9  # steps between saves
_TITLE = {
    "fit": "`resilient.fit`, no save due / `model.fit`",
    "loop": "`run.batches`, no save due / `for batch in batches`",
    "end": "snapshot at the end of an epoch",
    "middle": "snapshot in the middle of one",
    "within": "witness of a step, in a fit",
    "row": "witness of a step, in a row",
}


class Clock(keras.callbacks.Callback):
    """Seconds of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """The epoch begins."""
        self._begun = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """The epoch ended; what is saved now is not counted."""
        self.seconds.append(time.perf_counter() - self._begun)


def make_model() -> keras.Model:
    """Two small layers, and Adam."""
    model = keras.Sequential(
        [
            keras.Input((_FEATURES,)),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    # XLA takes long to compile on TensorFlow, and JAX without it runs each operation.
    jit = "auto" if BACKEND == "jax" else False
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=jit)
    return model


def arrays(steps: int) -> dict[str, Any]:
    """Data for so many steps."""
    count = steps * _BATCH
    x = np.random.default_rng(0).normal(size=(count, _FEATURES)).astype("float32")
    return {"x": x, "y": np.arange(count) % 3, "batch_size": _BATCH, "verbose": 0}


def of_fit(model: keras.Model, steps: int, *, ours: bool) -> float:
    """Seconds per step of a fit."""
    clock = Clock()
    given = arrays(steps) | {"epochs": _EPOCHS, "callbacks": [clock]}
    with tempfile.TemporaryDirectory() as directory:
        if ours:
            resilient.fit(model, checkpoint_dir=directory, save_freq=_NEVER, **given)
        else:
            model.fit(**given)
    return statistics.mean(clock.seconds[1:]) / steps


def of_loop(model: keras.Model, steps: int, *, ours: bool) -> float:
    """Seconds per batch of a loop that does nothing."""
    batches = [(np.zeros(1, "float32"),)] * steps
    if not ours:
        begun = time.perf_counter()
        for _ in batches:
            pass
        return (time.perf_counter() - begun) / steps
    with tempfile.TemporaryDirectory() as directory:
        run = resilient.Run(directory, model=model, save_freq=_NEVER, verbose=0)
        for _ in run.epochs(2):
            begun = time.perf_counter()
            for _ in run.batches(batches):
                pass
            seconds = time.perf_counter() - begun
    return seconds / steps


def compared(way: Callable[..., float], steps: int, pairs: int) -> dict[str, Any]:
    """Pairs of plain and ours, in turn."""
    model, found = make_model(), {False: [], True: []}
    for pair in track(range(pairs + 1), way.__name__, console=Console(stderr=True)):
        for ours in (False, True) if pair % 2 else (True, False):
            spent = way(model, steps, ours=ours)
            if pair:  # the first warms up
                found[ours].append(spent)
    more = [b - a for a, b in zip(found[False], found[True], strict=True)]
    return {
        **summary(found[True], found[False]),
        "microseconds": _quartiles([1e6 * each for each in more]),
    }


def stalls(pairs: int, *, every: int, steps: int) -> dict[str, Any]:
    """Milliseconds that training waits for a snapshot.

    Args:
        pairs: Decides how many there are.
        every: Steps between two of them.
        steps: In an epoch.
    """
    epochs = max(2, 4 * pairs * every // steps)
    with tempfile.TemporaryDirectory() as directory:
        resilient.fit(
            make_model(),
            checkpoint_dir=directory,
            save_freq=every,
            **arrays(steps) | {"epochs": epochs},
        )
        lines = Path(directory, "events.jsonl").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    waited = [1e3 * each["stall"] for each in events if each["event"] == "saved"]
    # The first traces and allocates; the last waits for the write.
    return {"milliseconds": _quartiles(waited[1:-1]), "samples": waited[1:-1]}


def _quartiles(samples: Sequence[float]) -> list[float]:
    return np.quantile(samples, (0.25, 0.5, 0.75)).tolist()


def _words(quartiles: Sequence[float]) -> str:
    low, middle, high = quartiles
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    """What is shown of a report: names and figures."""
    found = [("step of `model.fit`", f"{1e3 * report['fit']['limit']:.2f} ms")]
    found.append((_TITLE["fit"], figures.ratio(report["fit"])))
    for name in ("fit", "loop"):
        more = _words(report[name]["microseconds"])
        found.append((f"{_TITLE[name]}, more per batch", f"{more} us"))
    for name in ("end", "middle"):
        waited = _words(report["snapshots"][name]["milliseconds"])
        found.append((_TITLE[name], f"{waited} ms"))
    for name, spent in report["witnesses"].items():
        found.append((_TITLE[name], f"{_words(spent['quartiles'])} us"))
    return found


def write() -> None:
    """Put the figures into the documentation."""
    kept = figures.kept(NAME)
    shown = {backend: dict(rows(each)) for backend, each in kept.items()}
    head = ["", *(figures.BACKENDS[backend] for backend in shown)]
    names = dict.fromkeys(name for each in shown.values() for name in each)
    body = [[name, *(each[name] for each in shown.values())] for name in names]
    figures.show("training-overhead.md", NAME, figures.table(head, body))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=1000)
    figures.add_options(parser)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    pairs, steps = options.pairs, options.steps
    report: dict[str, Any] = {
        "backend": BACKEND,
        "machine": machine.facts(tempfile.gettempdir()),
        "steps": steps,
        "fit": compared(of_fit, steps, pairs),
        "loop": compared(of_loop, steps, pairs),
        "snapshots": {
            "end": stalls(pairs, every=20, steps=20),
            "middle": stalls(pairs, every=300, steps=1000),
        },
        "witnesses": witnesses.measured(make_model(), arrays(steps), steps),
    }
    console = Console(width=110)
    console.print(machine.words(report["machine"]))
    table = Table("", BACKEND, title=f"{steps} steps, {pairs} pairs")
    for row in rows(report):
        table.add_row(*row)
    console.print(table)
    figures.finish(options, NAME, report, write)


if __name__ == "__main__":
    main()
