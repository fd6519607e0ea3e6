"""Train a small network on digits, and write down the loss of each batch.

    python digits.py WAY DIRECTORY STEP

`WAY` is what the training survives with: "resilient", "BackupAndRestore" or "nothing".
The process kills itself once, after `STEP`. `losses.csv` in the directory has a line
for each batch: its step, as Keras counts it, and the loss of this batch alone.
"""

import os
import signal
import sys
from pathlib import Path

import keras
from sklearn.datasets import load_digits

import resilient

EPOCHS, BATCH, BATCHES, SAVE_FREQ = 3, 20, 60, 10


class Losses(keras.callbacks.Callback):
    """Writes down the loss of each batch; kills the process once, after a step."""

    def __init__(self, directory: Path, kill_after: int) -> None:
        super().__init__()
        self._file, self._killed = directory / "losses.csv", directory / "killed"
        self._kill_after = kill_after
        self._first, self._total = 0, 0.0

    def state_dict(self) -> dict[str, float]:
        """The state that a mid-epoch resume needs."""
        return {"total": self._total}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Continue in mid-epoch."""
        self._total = state["total"]

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        """Note the step at which the epoch begins."""
        self._first, self._total = epoch * BATCHES, 0.0

    def on_train_batch_end(self, batch: int, logs: dict[str, float]) -> None:
        """Write down the loss, and die as if the machine were taken away."""
        step = self._first + batch + 1
        total = float(logs["loss"]) * (batch + 1)  # Keras reports a running mean
        with self._file.open("a") as file:
            file.write(f"{step},{total - self._total:.6f}\n")
        self._total = total
        if step == self._kill_after and not self._killed.exists():
            self._killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def network() -> keras.Model:
    """A small network with augmentation, batch normalization and dropout."""
    layers = keras.layers
    net = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(32, 3, use_bias=False),
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dropout(0.2),
            layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    net.compile(keras.optimizers.Adam(3e-4), loss)
    return net


def main(way: str, directory: Path, kill_after: int) -> None:
    """Train to the end."""
    keras.utils.set_random_seed(7)
    images, digits = load_digits(return_X_y=True)
    x = (images / 16).reshape(-1, 8, 8, 1).astype("float32")[: BATCH * BATCHES]
    y = digits[: BATCH * BATCHES]
    options = {"batch_size": BATCH, "epochs": EPOCHS, "verbose": 0}
    callbacks = [Losses(directory, kill_after)]
    net = network()
    if way == "resilient":
        resilient.fit(
            net,
            x,
            y,
            **options,
            callbacks=callbacks,
            checkpoint_dir=directory / "checkpoints",
            save_freq=SAVE_FREQ,
        )
        return
    if way == "BackupAndRestore":
        backup = keras.callbacks.BackupAndRestore(
            directory / "backup", save_freq=SAVE_FREQ
        )
        callbacks.insert(0, backup)
    net.fit(x, y, **options, callbacks=callbacks)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
