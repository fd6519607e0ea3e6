"""What a worker draws from our pipelines, and from Keras's: at once, and in two parts.

    python positions.py DIRECTORY

Started with ``TF_CONFIG``, in each of several processes. Prints for each case one line
of JSON: its name, the rows of this worker's batches as Keras draws them, as we draw
them, and as a second pipeline of ours goes on after some of them.
"""

import json
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from resilient import keras_internals
from resilient.backends import get_backend
from resilient.data.select import adapter_for
from resilient.data.source import SourceContext

ROWS, BATCH, DRAWN = 44, 8, 2
UNSEEDED = "OFF, without a seed"
Policy = tf.data.experimental.AutoShardPolicy
STRATEGY = tf.distribute.MultiWorkerMirroredStrategy()


def sharded(dataset: tf.data.Dataset, policy: Policy) -> tf.data.Dataset:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    return dataset.with_options(options)


def numbers(shuffle_seed: int | None = 3) -> tf.data.Dataset:
    return tf.data.Dataset.range(ROWS).shuffle(9, seed=shuffle_seed).batch(BATCH)


def from_files(directory: Path) -> tf.data.Dataset:
    files = [str(directory / f"{number}.txt") for number in range(4)]
    dataset = tf.data.TextLineDataset(files).map(tf.strings.to_number)
    return dataset.shuffle(5, seed=2).batch(BATCH)


def write_files(directory: Path) -> None:
    for number in range(4):
        text = "\n".join(map(str, range(11 * number, 11 * number + 11)))
        (directory / f"{number}.txt").write_text(text)


def cases(directory: Path) -> dict:
    """Arguments of fit, made anew each time: datasets remember how often they began."""
    rows = np.arange(ROWS)
    return {
        UNSEEDED: lambda: {"x": sharded(numbers(None), Policy.OFF)},
        "arrays": lambda: {"x": rows, "batch_size": BATCH, "shuffle": True},
        "arrays in order": lambda: {"x": rows, "batch_size": BATCH},
        "DATA": lambda: {"x": sharded(numbers(), Policy.DATA)},
        "AUTO": lambda: {"x": numbers()},
        "OFF": lambda: {"x": sharded(numbers(), Policy.OFF)},
        "FILE": lambda: {"x": sharded(from_files(directory), Policy.FILE)},
        "AUTO, files": lambda: {"x": from_files(directory)},
    }


def made(arguments: dict, saved=None):
    """Our adapter, and what Keras would iterate."""
    known = {"y": None, "sample_weight": None, "class_weight": None}
    known |= {"steps_per_epoch": None, "batch_size": None, "shuffle": False}
    settings = SourceContext(
        get_backend(), verbose=False, ahead=True, strategy=STRATEGY, saved=saved
    )
    adapter = adapter_for(known | arguments, settings)
    return adapter, STRATEGY.experimental_distribute_dataset(adapter.get_tf_dataset())


def drawn(iterator, count: int | None = None) -> list:
    """Rows of this worker's batches."""
    found = []
    while count is None or len(found) < count:
        try:
            batch = next(iterator)
        except StopIteration:
            break
        first = keras.tree.flatten(batch)[0]
        parts = STRATEGY.experimental_local_results(first)
        found.append([part.numpy().tolist() for part in parts])
    return found


def epoch(adapter, distributed):
    adapter.before_iterator()
    return iter(adapter.wrap(distributed))


def seed(name: str) -> None:
    if name != UNSEEDED:  # which is run first
        keras.utils.set_random_seed(1)


def run(name: str, make) -> None:
    seed(name)
    steps = {"distribute_strategy": STRATEGY} | make()
    plain = keras_internals.backend_epoch_iterator()(**steps)
    expected = [drawn(iter(plain._get_iterator())) for _ in range(2)]
    seed(name)
    ours, distributed = made(make())
    first = drawn(epoch(ours, distributed))
    second = epoch(ours, distributed)
    begin = drawn(second, DRAWN)
    position = ours.position(DRAWN, held=True)
    actual = [first, begin + drawn(second)]
    seed(name)
    again, distributed = made(make(), position)
    again.resume(position)
    again.seek(position)
    rest = drawn(epoch(again, distributed))
    print(json.dumps([name, expected, actual, begin + rest]), flush=True)


def main(directory: str) -> None:
    if STRATEGY.cluster_resolver.task_id == 0:
        write_files(Path(directory))
    for name, make in cases(Path(directory)).items():
        run(name, make)


if __name__ == "__main__":
    main(*sys.argv[1:])
