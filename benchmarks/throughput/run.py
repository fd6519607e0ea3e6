"""Is training through our sources as fast as through Keras's own adapters?

    KERAS_BACKEND=jax python benchmarks/throughput/run.py [--pairs 7] [--steps 400]

For each source, pairs of runs: `model.fit` and `resilient.fit`, in turn, on a tiny
model, where the cost of the data shows most. The time is that of the second epoch, in
which nothing is saved. Printed are the medians and the median of the paired ratios.
"""

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
with contextlib.suppress(ImportError):
    import torch  # noqa: F401  # before TensorFlow, or the process crashes

import keras
from rich.console import Console
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
    model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=False)
    return model


def seconds(name: str, steps: int, size: int, *, ours: bool) -> float:
    """One run; the time of its second epoch."""
    x = SOURCES[name][0](2 * steps if name == "generator" else steps, size)
    clock = Clock()
    given: dict[str, Any] = {"epochs": 2, "verbose": 0, "callbacks": [clock]}
    given["shuffle"] = name in ("arrays", "PyDataset")
    if name == "arrays":
        x, given["y"] = x
        given["batch_size"] = size
    if name == "generator":
        given["steps_per_epoch"] = steps
    model = make_model()
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as directory:
        warnings.simplefilter("ignore")
        if ours:
            resilient.fit(model, x, checkpoint_dir=directory, save_freq=10**9, **given)
        else:
            model.fit(x, **given)
    return clock.seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--sources", nargs="*", default=available())
    arguments = parser.parse_args()
    backend = keras.backend.backend()
    table = Table(title=f"{backend}, {arguments.steps} steps, {os.cpu_count()} cores")
    for head in ("source", "model.fit us/step", "resilient.fit us/step", "ratio"):
        table.add_column(head, justify="left" if head == "source" else "right")
    for name in arguments.sources:
        times: dict[bool, list[float]] = {False: [], True: []}
        for pair in range(arguments.pairs + 1):
            for ours in (False, True) if pair % 2 else (True, False):
                spent = seconds(name, arguments.steps, arguments.batch_size, ours=ours)
                times[ours].append(spent / arguments.steps * 1e6)
        theirs, mine = (values[1:] for values in times.values())  # the first warms up
        ratios = [b / a for a, b in zip(theirs, mine, strict=True)]
        table.add_row(
            name,
            f"{statistics.median(theirs):.0f}",
            f"{statistics.median(mine):.0f}",
            f"{statistics.median(ratios):.3f} ({min(ratios):.2f}-{max(ratios):.2f})",
        )
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
