"""How long does it take to get back to batch k, and how much does that keep?

    KERAS_BACKEND=tensorflow python benchmarks/seek/run.py [--at 10 1000 100000]

For each source: the time from a position to the next batch, beside the time to draw
again all batches before it, which is what every source costs without a position. Then
what an iterator with a large shuffle buffer adds to a checkpoint.
"""

import argparse
import contextlib
import itertools
import logging
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
with contextlib.suppress(ImportError):
    import torch  # noqa: F401  # before TensorFlow, or the process crashes

import keras
import numpy as np
from adapters import batches, ours
from rich.console import Console
from rich.table import Table
from sources import SOURCES, available

from resilient.backends import get_backend
from resilient.serialization.json_values import decode, encode
from resilient.serialization.position import DataPosition
from resilient.serialization.schema import from_json, to_json
from resilient.state.rng import kept_random_state

BACKEND = keras.backend.backend()
SIZE = 8  # samples a batch


def make(name: str, count: int, saved: Any = None) -> Any:
    """A new adapter on new data."""
    return ours(name, SOURCES[name][0](count, SIZE), SIZE, saved)


def measured(name: str, at: int) -> tuple[float, float]:
    """Seconds to draw `at` batches, and to get to that position without."""
    count = at + 10
    first = make(name, count)
    iterator = batches(first)
    next(iterator)  # what is built once is not counted
    begun = time.perf_counter()
    for _ in itertools.islice(iterator, at - 1):
        pass
    replay = time.perf_counter() - begun
    with first.frozen():
        arrays: dict[str, np.ndarray] = {}
        saved = encode(to_json(first.position(at, held=True)), arrays, "data")
    position = from_json(DataPosition, decode(saved, arrays))
    second = make(name, count, position)
    with kept_random_state(get_backend()):
        begun = time.perf_counter()
        second.resume(position)
        second.seek(position)
        resumed = batches(second)
        next(resumed)
    return replay, time.perf_counter() - begun


def shuffle_buffer(samples: int, floats: int) -> tuple[int, float, float]:
    """Bytes, and seconds to take and to set, of an iterator with that buffer."""
    import tensorflow as tf

    data = tf.data.Dataset.range(10**9).map(
        lambda i: tf.random.stateless_uniform((floats,), seed=[1, i])
    )
    data = data.shuffle(samples, seed=1).batch(SIZE)
    first = ours("tf.data", data, SIZE)
    next(batches(first))
    begun = time.perf_counter()
    arrays: dict[str, np.ndarray] = {}
    saved = encode(to_json(first.position(1, held=True)), arrays, "data")
    took = time.perf_counter() - begun
    second = ours("tf.data", data, SIZE)
    begun = time.perf_counter()
    position = from_json(DataPosition, decode(saved, arrays))
    second.resume(position)
    second.seek(position)
    next(batches(second))
    return sum(a.nbytes for a in arrays.values()), took, time.perf_counter() - begun


def main() -> None:
    """Measure and print."""
    logging.getLogger("absl").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--at", type=int, nargs="*", default=[10, 1_000, 100_000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sources", nargs="*", default=available())
    parser.add_argument("--buffers", type=int, nargs="*", default=[1_000, 10_000])
    arguments = parser.parse_args()
    console = Console(width=100)
    title = f"{BACKEND}: seconds to get back to batch k (draw all before it again)"
    table = Table("source", *(f"k = {at:,}" for at in arguments.at), title=title)
    for name in arguments.sources:
        cells = []
        for at in arguments.at:
            pairs = [measured(name, at) for _ in range(arguments.repeats)]
            replay, seek = map(statistics.median, zip(*pairs, strict=True))
            cells.append(f"{seek:.4f} ({replay:.4f})")
        table.add_row(name, *cells)
    console.print(table)
    if "tf.data" in arguments.sources:
        title = "what a tf.data shuffle buffer adds to a checkpoint"
        table = Table("samples", "KB each", "MB", "take s", "set s", title=title)
        for samples, floats in itertools.product(arguments.buffers, (16, 1024)):
            size, take, put = shuffle_buffer(samples, floats)
            kilobytes = f"{floats * 4 / 1e3:g}"
            cells = (f"{size / 1e6:.1f}", f"{take:.3f}", f"{put:.3f}")
            table.add_row(f"{samples:,}", kilobytes, *cells)
        console.print(table)


if __name__ == "__main__":
    main()
