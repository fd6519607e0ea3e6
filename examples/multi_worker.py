"""TensorFlow's multi-worker tutorial on real digits, and a worker that is killed.

    resilient run --nproc 2 -- python examples/multi_worker.py
    resilient run --nproc 2 -- python examples/multi_worker.py \
        --checkpoint-dir runs/b --kill-worker 1 --at-step 30

The second command kills a worker (SIGKILL) in the middle of an epoch. `resilient run`
starts all of them again, they go on from the last checkpoint, and each prints the
digest that the first command printed: one hash over all weights and the optimizer.
"""

import argparse
import hashlib
import json
import os
import signal
from pathlib import Path

# Before Keras is imported, which this backend is for.
os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import resilient

BATCH_SIZE = 64  # of each worker


class KillAt(keras.callbacks.Callback):
    """Kills a worker after a step, once in the life of a run.

    Args:
        doomed: Whether this worker is the one.
        step: After which step of the run, counted from 1.
        directory: The run's directory, which remembers that the kill happened.
    """

    def __init__(self, doomed: bool, step: int, directory: Path) -> None:
        super().__init__()
        self.doomed, self.step, self.steps = doomed, step, 0
        self.happened = directory / f"killed-at-{step}"

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Kill, as a machine that is taken away would: nothing can be cleaned up."""
        self.steps += 1
        if self.doomed and self.steps == self.step and not self.happened.exists():
            self.happened.parent.mkdir(parents=True, exist_ok=True)
            self.happened.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def make_dataset(batch_size: int) -> tf.data.Dataset:
    """The digits, shuffled, without end; TensorFlow gives each worker its share."""
    digits = load_digits()
    images = digits.images.astype("float32") / 16
    dataset = tf.data.Dataset.from_tensor_slices((images, digits.target))
    return dataset.shuffle(len(images), seed=7).repeat().batch(batch_size)


def make_model() -> keras.Model:
    """The tutorial's small CNN."""
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((8, 8)),
            layers.Reshape((8, 8, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    )
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=keras.optimizers.SGD(0.05, momentum=0.9),
        metrics=["accuracy"],
    )
    return model


def digest(model: keras.Model) -> str:
    """One hash over all weights and the optimizer, as this worker has them."""
    found = hashlib.sha256()
    for variable in [*model.variables, *model.optimizer.variables]:
        found.update(np.asarray(variable.numpy()).tobytes())
    return found.hexdigest()


def task() -> tuple[int, int]:
    """Which worker this is, and of how many."""
    config = json.loads(os.environ.get("TF_CONFIG", "{}"))
    workers = config.get("cluster", {}).get("worker", ["alone"])
    return config.get("task", {}).get("index", 0), len(workers)


def main() -> None:
    """Train, and print the digest."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    directory = Path("runs/multi-worker")
    parser.add_argument("--checkpoint-dir", type=Path, default=directory)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps-per-epoch", type=int, default=20)
    parser.add_argument("--kill-worker", type=int, metavar="INDEX")
    parser.add_argument("--at-step", type=int, default=30)
    arguments = parser.parse_args()

    # Before anything else of TensorFlow: the workers meet here.
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    index, workers = task()
    keras.utils.set_random_seed(7)
    with strategy.scope():
        model = make_model()
    doomed = index == arguments.kill_worker
    resilient.fit(
        model,
        make_dataset(BATCH_SIZE * workers),
        epochs=arguments.epochs,
        steps_per_epoch=arguments.steps_per_epoch,
        callbacks=[KillAt(doomed, arguments.at_step, arguments.checkpoint_dir)],
        verbose=2 if index == 0 else 0,
        checkpoint_dir=arguments.checkpoint_dir,
        save_freq=8,
    )
    print(f"worker {index} of {workers}: digest {digest(model)}", flush=True)


if __name__ == "__main__":
    main()
