"""Train a small CNN on handwritten digits, and survive being killed.

    KERAS_BACKEND=jax python examples/digits.py
    KERAS_BACKEND=jax python examples/digits.py --checkpoint-dir runs/b --kill-at 2:17

The second command kills itself (SIGKILL) at epoch 2, batch 17. Run it again: it resumes
and prints the same digest as the first one, a hash of all weights, the optimizer and
the History. With `--backup-and-restore`, Keras's own callback resumes it instead.
"""

import argparse
import hashlib
import json
import os
import signal
from pathlib import Path

import keras
import numpy as np
from sklearn.datasets import load_digits

import resilient

BATCH_SIZE = 50


class KillAt(keras.callbacks.Callback):
    """Kills this process after a batch, once per run.

    Args:
        epoch: The epoch, counted from 0; -1 never kills.
        batch: The batch within it, counted from 0.
        directory: The run's directory, which records that the kill happened.
    """

    def __init__(self, epoch: int, batch: int, directory: Path) -> None:
        super().__init__()
        self.point = (epoch, batch)
        self.epoch = -1
        self.happened = directory / f"killed-at-{epoch}-{batch}"

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Note the current epoch."""
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Die as if the machine were taken away: nothing can be cleaned up."""
        if self.point == (self.epoch, batch) and not self.happened.exists():
            self.happened.parent.mkdir(parents=True, exist_ok=True)
            self.happened.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def make_model(steps: int) -> keras.Model:
    """A small CNN with augmentation; its learning rate decays over `steps`."""
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.RandomTranslation(0.1, 0.1),
            layers.RandomRotation(0.05),
            layers.Conv2D(16, 3, padding="same", use_bias=False),
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, padding="same", use_bias=False),
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dropout(0.3),
            layers.Dense(10, activation="softmax"),
        ]
    )
    schedule = keras.optimizers.schedules.CosineDecay(5e-3, decay_steps=steps)
    model.compile(
        optimizer=keras.optimizers.Adam(schedule),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def digest(model: keras.Model, history: keras.callbacks.History) -> str:
    """A hash of all weights, the optimizer and the History."""
    found = hashlib.sha256()
    for variable in [*model.variables, *model.optimizer.variables]:
        found.update(np.asarray(keras.ops.convert_to_numpy(variable)).tobytes())
    found.update(json.dumps([history.epoch, history.history]).encode())
    return found.hexdigest()


def main() -> None:
    """Train, and print the digest."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint-dir", type=Path, default=Path("runs/digits"))
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--kill-at", metavar="EPOCH:BATCH")
    parser.add_argument("--backup-and-restore", action="store_true")
    arguments = parser.parse_args()
    epoch, batch = map(int, (arguments.kill_at or "-1:-1").split(":"))

    keras.utils.set_random_seed(7)
    digits = load_digits()
    images = digits.images[..., None].astype("float32") / 16
    labels = digits.target
    train, held_out = slice(0, 1500), slice(1500, None)

    model = make_model(steps=arguments.epochs * 1500 // BATCH_SIZE)
    callbacks = [
        keras.callbacks.EarlyStopping(patience=3, restore_best_weights=True),
        KillAt(epoch, batch, arguments.checkpoint_dir),
    ]
    training = {
        "x": images[train],
        "y": labels[train],
        "batch_size": BATCH_SIZE,
        "epochs": arguments.epochs,
        "validation_data": (images[held_out], labels[held_out]),
        "verbose": 2,
    }
    directory, save_freq = arguments.checkpoint_dir, 10
    if arguments.backup_and_restore:
        backup = keras.callbacks.BackupAndRestore(directory / "backup", save_freq)
        history = model.fit(**training, callbacks=[backup, *callbacks])
    else:
        history = resilient.fit(
            model,
            **training,
            callbacks=callbacks,
            checkpoint_dir=directory,
            save_freq=save_freq,
        )
    print("optimizer steps", int(model.optimizer.iterations))
    print("digest", digest(model, history))


if __name__ == "__main__":
    main()
