"""Trains a small convolutional network, on whatever backend Keras runs on.

python -m another_backend.program DIRECTORY EPOCHS [die_before=STEP] [OPTION=VALUE...]

It leaves ``DIRECTORY/end.npz``: all variables, what was logged, which samples it saw.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
from support.waited import wait_for_each_save

import resilient

SAMPLES, BATCH = 22, 4  # six batches an epoch, the last one smaller
EPOCH = 6


@keras.saving.register_keras_serializable("another_backend")
class Counts(keras.layers.Layer):
    """Counts how often it saw each sample: their numbers are the first pixel."""

    def build(self, shape: Any) -> None:
        def zeros() -> Any:
            return self.add_weight(
                shape=(SAMPLES,), initializer="zeros", trainable=False
            )

        self.seen, self.last = zeros(), zeros()

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            numbers = keras.ops.cast(x[:, 0, 0, 0], "int32")
            here = keras.ops.sum(keras.ops.one_hot(numbers, SAMPLES), axis=0)
            self.last.assign(here)
            self.seen.assign(self.seen + here)
        return x


def model() -> keras.Model:
    """It draws in each batch, and keeps statistics, counts and seeds."""
    layers = keras.layers
    net = keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            Counts(),
            layers.Conv2D(3, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.Dropout(0.3, seed=5),
            layers.Flatten(),
            layers.Dense(3, activation="softmax"),
        ]
    )
    net.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return net


def data() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.RandomState(0).normal(size=(SAMPLES, 6, 6, 1)).astype("float32")
    x[:, 0, 0, 0] = np.arange(SAMPLES)
    return x, np.arange(SAMPLES) % 3


class Watch(keras.callbacks.Callback):
    """Knows which samples each batch had; may kill the process before a step."""

    def __init__(self, die_before: int | None = None) -> None:
        super().__init__()
        self.batches: list[list[int]] = []
        self._die_before = die_before

    def state_dict(self) -> dict[str, Any]:
        return {"batches": self.batches}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.batches = state["batches"]

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if len(self.batches) == self._die_before:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if keras.backend.backend() == "jax":
            self.model.jax_state_sync()
        last = np.asarray(keras.ops.convert_to_numpy(self.model.layers[0].last.value))
        self.batches.append(np.flatnonzero(last).tolist())


def values(net: keras.Model) -> dict[str, np.ndarray]:
    """Every variable of the model, the optimizer and the metrics, by place."""
    if keras.backend.backend() == "jax":
        net.jax_state_sync()
    groups = {
        "weights": net.variables,
        "optimizer": net.optimizer.variables,
        "metrics": net.metrics_variables,
    }
    return {
        f"{group} {number}": np.asarray(keras.ops.convert_to_numpy(variable.value))
        for group, found in groups.items()
        for number, variable in enumerate(found)
    }


def callbacks() -> list[keras.callbacks.Callback]:
    """Those of Keras that learn from what they see."""
    return [
        keras.callbacks.ReduceLROnPlateau("loss", patience=0, min_delta=10.0),
        keras.callbacks.EarlyStopping("loss", patience=50, restore_best_weights=True),
    ]


def train(
    directory: Path, epochs: int, *, die_before: int | None = None, **options: Any
) -> dict[str, Any]:
    """Train, or resume; what there is in the end.

    Args:
        directory: For the checkpoints.
        epochs: Of the whole run.
        die_before: The step before which the process kills itself.
        **options: Of ``resilient.fit``.
    """
    net, watch = model(), Watch(die_before)
    x, y = data()
    history = resilient.fit(
        net,
        x,
        y,
        batch_size=BATCH,
        epochs=epochs,
        validation_data=(x[:6], y[:6]),
        callbacks=[*callbacks(), watch],
        verbose=0,
        checkpoint_dir=directory,
        **options,
    )
    told = {"history": history.history, "batches": watch.batches}
    return {**values(net), "told": np.array(json.dumps(told))}


def loop(
    directory: Path, steps: int, *, pause: float = 0.0, **options: Any
) -> tuple[dict[str, Any], list[float]]:
    """The same in a loop over data in its order; left after so many steps.

    Args:
        directory: For the checkpoints.
        steps: How many.
        pause: Seconds after each, for a save that is written meanwhile.
        **options: Of ``resilient.Run``.

    Returns:
        What there is in the end, and the number of the first sample of each batch that
        was trained here.
    """
    net, generator = model(), np.random.default_rng(3)
    x, y = data()
    net.test_on_batch(x[:2], y[:2])
    net.reset_metrics()
    seeds = keras.random.SeedGenerator(4)
    run = resilient.Run(
        directory,
        net=net,
        generator=generator,
        seeds=seeds,
        verbose=0,
        save_freq=1,
        **options,
    )
    firsts = []
    batches = run.loop((x, y), epochs=9, batch_size=BATCH, shuffle=False)
    for _, step, (images, labels) in batches:
        if step == steps:
            break
        firsts.append(float(images[0, 0, 0, 0]))
        net.train_on_batch(images, labels)
        drawn = float(generator.random())
        keras.random.uniform((), seed=seeds)
        run.log(drawn=drawn)
        time.sleep(pause)
    end = {**values(net), "seeds": np.asarray(keras.ops.convert_to_numpy(seeds.state))}
    return end | {"drawn": np.array(run.history["drawn"])}, firsts


def main(directory: str, epochs: str, *options: str) -> None:
    pairs = (each.partition("=") for each in options)
    given = {name: json.loads(value) for name, _, value in pairs}
    keras.utils.set_random_seed(given.pop("seed", 7))
    np.savez(Path(directory, "end.npz"), **train(Path(directory), int(epochs), **given))


if __name__ == "__main__":
    wait_for_each_save()  # so that a kill finds one, however quick the steps are
    main(*sys.argv[1:])
