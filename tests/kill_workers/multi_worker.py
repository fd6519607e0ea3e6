"""Keras's own ``fit`` on two replicas: of one process, or one in each of two.

    python multi_worker.py DIRECTORY [CASE ...]

With ``TF_CONFIG`` it is a worker of ``MultiWorkerMirroredStrategy``, and Keras is
corrected; without, ``MirroredStrategy`` has two logical devices. Prints for each case
one line of JSON: its name, what ``fit``, ``evaluate`` and ``predict`` returned, and a
digest of each local replica's component of each variable.

Under the policies FILE and OFF each worker reads batches of its own. One process is
given the batches that both read, side by side.
"""

import hashlib
import json
import os
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from resilient.keras_internals.multi_worker import corrected

CLUSTER = "TF_CONFIG" in os.environ
SAMPLES, BATCH, LOCAL = 52, 8, 4
Policy = tf.data.experimental.AutoShardPolicy
random = np.random.RandomState(0)
X = random.rand(SAMPLES, 6).astype("float32")
Y = random.randint(0, 3, SAMPLES)


def make_model(**compiling) -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3, seed=7),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(3),
        ]
    )
    model.compile(
        keras.optimizers.Adam(0.01, use_ema=True),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        **compiling,
    )
    return model


def sharded(dataset: tf.data.Dataset, policy: Policy) -> tf.data.Dataset:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    return dataset.with_options(options)


def rows(order: np.ndarray, size: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X[order], Y[order])).batch(size)


def same_for_both(policy: Policy) -> tf.data.Dataset:
    """Without sharding both workers train the same half batches.

    As many as the dataset has batches, which is half of it in each epoch.
    """
    if CLUSTER:
        return sharded(rows(np.arange(48), BATCH), policy)
    halves = np.repeat(np.arange(48).reshape(-1, 1, LOCAL), 2, axis=1)
    return rows(halves.reshape(-1), BATCH).take(48 // BATCH)


def lines(files: list[str]) -> tf.data.Dataset:
    def parse(line):
        numbers = tf.strings.to_number(tf.strings.split(line))
        return tf.ensure_shape(numbers[:6], (6,)), tf.cast(numbers[6], tf.int64)

    return tf.data.TextLineDataset(files).map(parse)


def from_files(directory: Path) -> tf.data.Dataset:
    """Four files: each worker reads every other one.

    Without an end: the step that finds no data draws seeds, too, and at times not on
    each device of one process.
    """
    files = [str(directory / f"{number}.txt") for number in range(4)]
    if CLUSTER:
        return sharded(lines(files).batch(BATCH).repeat(), Policy.FILE)
    halves = [lines(files[first::2]).batch(LOCAL) for first in range(2)]
    both = tf.data.Dataset.choose_from_datasets(
        [half.unbatch() for half in halves],
        tf.data.Dataset.range(48).map(lambda n: n // LOCAL % 2),
    )
    return both.batch(BATCH).repeat()


def write_files(directory: Path) -> None:
    for number in range(4):
        some = slice(12 * number, 12 * number + 12)
        text = [
            " ".join(map(str, [*x, y])) for x, y in zip(X[some], Y[some], strict=True)
        ]
        (directory / f"{number}.txt").write_text("\n".join(text))


def arrays() -> dict:
    return {"x": X, "y": Y, "batch_size": BATCH}


def data() -> tf.data.Dataset:
    return rows(np.arange(SAMPLES), BATCH).shuffle(5, seed=3)


def cases(directory: Path) -> dict:
    """Arguments of ``compile`` and of ``fit``, made when the case is run."""
    some = (X[:20], Y[:20])
    return {
        "arrays": lambda: ({}, arrays()),
        "arrays, validated": lambda: ({}, {**arrays(), "validation_data": some}),
        "validation split": lambda: ({}, {**arrays(), "validation_split": 0.3}),
        "class weights": lambda: (
            {},
            {**arrays(), "class_weight": {0: 2.0, 1: 1, 2: 1}},
        ),
        "DATA": lambda: ({}, {"x": sharded(data(), Policy.DATA)}),
        "AUTO": lambda: ({}, {"x": data(), "validation_data": data()}),
        "OFF": lambda: ({}, {"x": same_for_both(Policy.OFF)}),
        "FILE": lambda: (
            {},
            {"x": from_files(directory), "steps_per_epoch": 48 // BATCH},
        ),
        "steps_per_epoch": lambda: (
            {},
            {"x": data().repeat(), "steps_per_epoch": 5, "epochs": 3},
        ),
        # Keras's graph of several steps fails under every strategy: keras#19246.
        "steps_per_execution": lambda: (
            {"steps_per_execution": 2, "run_eagerly": True},
            {**arrays(), "epochs": 1},
        ),
    }


def digests(model: keras.Model) -> list[dict[str, str]]:
    """Of each variable, for each local replica."""
    variables = model.variables + model.optimizer.variables + model.metrics_variables
    names = [f"{index} {variable.name}" for index, variable in enumerate(variables)]
    replicas = zip(*(variable.value.values for variable in variables), strict=True)
    return [
        {
            name: hashlib.sha256(component.numpy().tobytes()).hexdigest()
            for name, component in zip(names, components, strict=True)
        }
        for components in replicas
    ]


def run(name: str, make, strategy: tf.distribute.Strategy) -> None:
    keras.utils.set_random_seed(1)
    compiling, arguments = make()
    with strategy.scope():
        model = make_model(**compiling)
    with corrected(model):
        fitted = model.fit(**({"epochs": 2, "verbose": 0} | arguments)).history
        evaluated = model.evaluate(X, Y, batch_size=BATCH, verbose=0)
    predicted = model.predict(X[:32], batch_size=BATCH, verbose=0)
    result = [name, fitted, evaluated, predicted.tolist(), digests(model)]
    print(json.dumps(result), flush=True)


def main(directory: str, *names: str) -> None:
    tf.config.experimental.enable_op_determinism()
    if CLUSTER:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    else:
        write_files(Path(directory))
        (cpu,) = tf.config.list_physical_devices("CPU")
        two = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, two)
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    known = cases(Path(directory))
    for name in names or known:
        run(name, known[name], strategy)


if __name__ == "__main__":
    main(*sys.argv[1:])
