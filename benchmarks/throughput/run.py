"""Is training through our sources as fast as through Keras's own adapters?

    KERAS_BACKEND=jax python benchmarks/throughput/run.py [--pairs 7] [--steps 400]

For each source two tables of pairs, Keras's and ours in turn: the data alone, all
batches drawn from the adapters; and `model.fit` beside `resilient.fit` on a tiny model,
where the cost of the data shows most. The time of a fit is that of its second epoch, in
which nothing is saved. Printed are medians, the median of the paired ratios, and the
ratio of the shortest times, which other work on the machine disturbs least.
"""

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
with contextlib.suppress(ImportError):
    import torch  # noqa: F401  # before TensorFlow, or the process crashes

import keras
from adapters import arguments, batches, of_keras, ours
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sources import FEATURES, SOURCES, available

import resilient


class Clock(keras.callbacks.Callback):
    """Seconds that the last epoch took."""

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """The epoch begins."""
        self.begun = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """The epoch ended; what is saved now is not counted."""
        self.seconds = time.perf_counter() - self.begun


def make_model() -> keras.Model:
    """Two small layers."""
    model = keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    # XLA takes long to compile on TensorFlow, and JAX without it runs each operation.
    jit = "auto" if keras.backend.backend() == "jax" else False
    model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=jit)
    return model


def of_data(name: str, steps: int, size: int, *, mine: bool) -> float:
    """Seconds to draw all batches."""
    data = SOURCES[name][0](steps, size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapter = (ours if mine else of_keras)(name, data, size)
        adapter.on_epoch_begin()
        begun = time.perf_counter()
        for drawn, _ in enumerate(batches(adapter)):
            if mine:
                adapter.on_trained(drawn)
        return time.perf_counter() - begun


def of_fit(name: str, steps: int, size: int, *, mine: bool) -> float:
    """Seconds that the second epoch of a fit takes."""
    data = SOURCES[name][0](2 * steps if name == "generator" else steps, size)
    clock = Clock()
    given = arguments(name, data, size)
    given |= {"epochs": 2, "verbose": 0, "callbacks": [clock]}
    if name == "generator":
        given["steps_per_epoch"] = steps
    model = make_model()
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as directory:
        warnings.simplefilter("ignore")
        if mine:
            resilient.fit(model, checkpoint_dir=directory, save_freq=10**9, **given)
        else:
            model.fit(**given)
    return clock.seconds


def compare(what: str, run: Callable[..., float], options: Any) -> Table:
    """Pairs of runs, for each source."""
    table = Table(title=f"{keras.backend.backend()}, {what}: us per batch")
    for head in ("source", "Keras", "resilient", "ratio", "of shortest"):
        table.add_column(head, justify="left" if head == "source" else "right")
    steps, size = options.steps, options.batch_size
    for name in track(options.sources, what, console=Console(stderr=True)):
        times: dict[bool, list[float]] = {False: [], True: []}
        for pair in range(options.pairs + 1):
            for mine in (False, True) if pair % 2 else (True, False):
                spent = run(name, steps, size, mine=mine)
                times[mine].append(spent / steps * 1e6)
        theirs, own = (values[1:] for values in times.values())  # the first warms up
        ratios = [b / a for a, b in zip(theirs, own, strict=True)]
        table.add_row(
            name,
            f"{statistics.median(theirs):.1f}",
            f"{statistics.median(own):.1f}",
            f"{statistics.median(ratios):.3f} ({min(ratios):.2f}-{max(ratios):.2f})",
            f"{min(own) / min(theirs):.3f}",
        )
    return table


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--sources", nargs="*", default=available())
    options = parser.parse_args()
    console = Console(width=100)
    console.print(f"{os.cpu_count()} cores, {options.steps} batches")
    console.print(compare("data alone", of_data, options))
    console.print(compare("fit", of_fit, options))


if __name__ == "__main__":
    main()
