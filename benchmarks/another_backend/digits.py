"""Train a convolutional network on digits until a step, and write down each loss.

python digits.py DIRECTORY STEP

Trains on whatever KERAS_BACKEND says, from the end of the last epoch in the directory
on, and kills itself before that step; or ends after ``EPOCHS`` epochs. ``losses.csv``
in the directory has a line for each batch: its step, and its own loss.
"""

import os
import signal
import sys
from pathlib import Path

import keras
import numpy as np
from sklearn.datasets import load_digits

import resilient

EPOCHS, BATCH = 4, 32


class Losses(keras.callbacks.Callback):
    """Writes down the loss of each batch; kills the process before a step."""

    def __init__(self, file: Path, until: int) -> None:
        super().__init__()
        self._file, self._until = file, until
        self.step, self._total = 0, 0.0

    def state_dict(self) -> dict[str, float]:
        return {"step": self.step, "total": self._total}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.step, self._total = int(state["step"]), state["total"]

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        self._total = 0.0

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        if self.step == self._until:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_train_batch_end(self, batch: int, logs: dict[str, float]) -> None:
        total = float(logs["loss"]) * (batch + 1)  # Keras gives the mean of the epoch
        self.step += 1
        with self._file.open("a") as file:
            file.write(f"{self.step},{total - self._total:.6f}\n")
        self._total = total


def main(directory: str, until: str) -> None:
    """Train until a step, or to the end."""
    keras.utils.set_random_seed(3)
    images, digits = load_digits(return_X_y=True)
    x, y = (images / 16).reshape(-1, 8, 8, 1).astype("float32"), digits
    layers = keras.layers
    first = np.random.default_rng(0)  # the same weights on each backend
    net = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(16, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )
    for weight in net.trainable_variables:
        if len(weight.shape) > 1:
            weight.assign(first.normal(0, 0.05, weight.shape))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    net.compile(keras.optimizers.Adam(3e-4), loss)
    resilient.fit(
        net,
        x,
        y,
        batch_size=BATCH,
        epochs=EPOCHS,
        callbacks=[Losses(Path(directory, "losses.csv"), int(until))],
        verbose=0,
        checkpoint_dir=directory,
        allow={"backend"},
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
