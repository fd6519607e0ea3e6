"""Every sample once per epoch, in the same order, even if the process is killed.

    KERAS_BACKEND=tensorflow python examples/shuffled_tf_data.py

trains on a shuffled tf.data pipeline three times: uninterrupted; killed (SIGKILL) in
the middle of an epoch; and the killed command again. A layer records the ids of the
samples as they are trained. The exit status is 0 if each id came once per epoch, in the
same order. It runs on any Keras backend, with TensorFlow installed.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import resilient

EPOCHS, BATCH_SIZE = 3, 50
KILLED = (1, 17)  # epoch and earliest batch, counted from 0


def pipeline() -> tf.data.Dataset:
    """Handwritten digits with their ids, shuffled without a seed."""
    images, labels = load_digits(return_X_y=True)
    ids = np.arange(len(labels), dtype="float32")
    samples = tf.data.Dataset.from_tensor_slices(((images / 16, ids), labels))
    return samples.shuffle(len(labels)).batch(BATCH_SIZE).prefetch(tf.data.AUTOTUNE)


class SavedState(keras.layers.Layer):
    """Passes features through, and records the ids of training samples.

    Args:
        samples: The number of ids to make room for.
    """

    def __init__(self, samples: int) -> None:
        super().__init__()
        new = {"initializer": "zeros", "trainable": False}
        self.ids = self.add_weight(shape=(samples,), **new)
        self.count = self.add_weight(shape=(1,), dtype="int32", **new)

    def call(self, features, ids, training=False):
        """`ids` has shape (batch,)."""
        if training:
            seen, count = self.ids.value, self.count.value
            self.ids.assign(keras.ops.slice_update(seen, count, ids))
            self.count.assign(self.count + keras.ops.shape(ids)[0])
        return features


def make_model(samples: int) -> keras.Model:
    """A small classifier with a layer that records `samples` ids."""
    image, number = keras.Input((64,)), keras.Input(())
    recorded = SavedState(samples)(image, number)
    hidden = keras.layers.Dense(32, activation="relu")(recorded)
    outputs = keras.layers.Dense(10)(keras.layers.Dropout(0.2)(hidden))
    model = keras.Model((image, number), outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, jit_compile=False)
    return model


class KillOnce(keras.callbacks.Callback):
    """Kills this process at `KILLED`, as if the machine were taken away.

    If the disk is slow, it waits for a checkpoint from this epoch.

    Args:
        mark: A file that records the kill, beside the checkpoints; None never kills.
    """

    def __init__(self, mark: Path | None) -> None:
        super().__init__()
        self.mark = mark
        self.epoch = -1

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Note the current epoch."""
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Die without a chance to clean up."""
        if not self.mark or self.mark.exists() or self.epoch != KILLED[0]:
            return
        begun = self.epoch * self.params["steps"]
        entries = self.mark.parent.glob("checkpoints/step-*")
        saved = [int(path.name[5:]) for path in entries if not path.suffix]
        if not saved or max(saved) <= begun:
            time.sleep(0.1)  # batches are faster than a slow disk
        elif batch >= KILLED[1]:
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def train(directory: Path, *, kill: bool) -> None:
    """Train, then save the ids in training order."""
    keras.utils.set_random_seed(7)
    data = pipeline()
    model = make_model(EPOCHS * len(load_digits().target))
    resilient.fit(  # was: model.fit(data, epochs=EPOCHS)
        model,
        data,
        epochs=EPOCHS,
        shuffle=False,  # or Keras warns that the pipeline should shuffle
        verbose=2,
        callbacks=[KillOnce(directory / "killed" if kill else None)],
        checkpoint_dir=directory / "checkpoints",
        save_freq=5,
    )
    record = next(layer for layer in model.layers if isinstance(layer, SavedState))
    ids = keras.ops.convert_to_numpy(record.ids)
    np.save(directory / "ids.npy", ids.astype(int).reshape(EPOCHS, -1))


def run(directory: Path, *options: str) -> int:
    """Train in a new process; return its exit status."""
    directory.mkdir(exist_ok=True)
    command = [sys.executable, __file__, "--directory", directory, *options]
    return subprocess.run(command, check=False).returncode


def compare(directory: Path) -> bool:
    """Train three times, and print a comparison."""
    alone, killed = directory / "alone", directory / "killed"
    assert run(alone) == 0
    assert run(killed, "--kill") == -signal.SIGKILL
    assert run(killed, "--kill") == 0
    expected, found = (np.load(each / "ids.npy") for each in (alone, killed))
    print(f"\nkilled in epoch {KILLED[0]}, and resumed:")
    for epoch, ids in enumerate(found):
        once = np.array_equal(np.sort(ids), np.arange(ids.size))
        same = np.array_equal(ids, expected[epoch])
        print(
            f"epoch {epoch}: ids {' '.join(map(str, ids[:5]))} ...; "
            f"each of {ids.size} once: {'yes' if once else 'NO'}; "
            f"order of the run left alone: {'yes' if same else 'NO'}"
        )
    each = np.sort(found) == np.arange(found.shape[1])
    return bool(each.all() and np.array_equal(found, expected))


def main() -> int:
    """Compare; with `--directory`, be one of the compared processes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--kill", action="store_true")
    arguments = parser.parse_args()
    if arguments.directory is not None:
        train(arguments.directory, kill=arguments.kill)
        return 0
    with tempfile.TemporaryDirectory() as directory:
        return 0 if compare(Path(directory)) else 1


if __name__ == "__main__":
    sys.exit(main())
