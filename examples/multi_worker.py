"""TensorFlow's multi-worker tutorial on real digits, with a worker that is killed.

    resilient run --nproc 2 -- python examples/multi_worker.py
    resilient run --nproc 2 -- python examples/multi_worker.py \
        --checkpoint-dir runs/b --kill-worker 1 --at-step 20

The second command kills a worker (SIGKILL) in the middle of an epoch. `resilient run`
restarts all workers, they resume from the last checkpoint, and each prints the same
digest as with the first command, a hash of all weights and the optimizer.

It runs on TensorFlow and, with KERAS_BACKEND=jax or torch, on those: only `meet` and
`training_data` differ.
"""

import argparse
import contextlib
import hashlib
import os
import signal
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
from sklearn.datasets import load_digits

import resilient

BACKEND = keras.backend.backend()
KERAS = tuple(int(part) for part in keras.__version__.split(".")[:2])
# On JAX, and on PyTorch since 3.16, Keras connects the workers.
KERAS_CONNECTS = BACKEND == "jax" or (BACKEND == "torch" and KERAS >= (3, 16))
BATCH_SIZE = 64  # per worker


def meet(
    *, connected: bool = False
) -> tuple[contextlib.AbstractContextManager[Any], int, int]:
    """Connect the workers; must come first.

    Args:
        connected: What started them has connected JAX's and PyTorch's already.

    Returns:
        The scope to create the model in, this worker's index, the number of workers.
    """
    if BACKEND == "tensorflow":
        import tensorflow as tf

        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        resolver = strategy.cluster_resolver
        workers = len(resolver.cluster_spec().as_dict().get("worker", ["alone"]))
        return strategy.scope(), resolver.task_id or 0, workers
    if KERAS_CONNECTS:
        if not connected:
            keras.distribution.initialize()
        # Keras cannot shard arrays: see training_data.
        parallel = keras.distribution.DataParallel(auto_shard_dataset=False)
        keras.distribution.set_distribution(parallel)
    if BACKEND == "jax":
        import jax

        return contextlib.nullcontext(), jax.process_index(), jax.process_count()
    # Before Keras 3.16, resilient.fit connects the workers.
    rank, count = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    return contextlib.nullcontext(), int(rank), int(count)


def training_data(index: int, workers: int) -> dict[str, Any]:
    """Arguments of ``fit``: the digits, in batches of 64 for each worker."""
    digits = load_digits()
    images = digits.images[:1792].astype("float32") / 16
    labels = digits.target[:1792]
    if BACKEND == "tensorflow":
        import tensorflow as tf

        # Global batches: the strategy gives each worker its share.
        dataset = tf.data.Dataset.from_tensor_slices((images, labels))
        dataset = dataset.shuffle(len(images), seed=7).batch(BATCH_SIZE * workers)
        return {"x": dataset}
    if KERAS_CONNECTS:
        # Keras takes these to be this process's own rows.
        images, labels = images[index::workers], labels[index::workers]
        return {"x": images, "y": labels, "batch_size": BATCH_SIZE}
    # Global batches: resilient.fit gives each worker its rows.
    return {"x": images, "y": labels, "batch_size": BATCH_SIZE * workers}


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


class KillAt(keras.callbacks.Callback):
    """Kills a worker after a step, once per run.

    Args:
        doomed: Whether to kill this worker.
        step: The step of this process, counted from 1.
        directory: The run's directory, which records that the kill happened.
    """

    def __init__(self, doomed: bool, step: int, directory: Path) -> None:
        super().__init__()
        self.doomed, self.step, self.steps = doomed, step, 0
        self.happened = directory / f"killed-at-{step}"

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Die as if the machine were taken away: nothing can be cleaned up."""
        self.steps += 1
        if self.doomed and self.steps == self.step and not self.happened.exists():
            self.happened.parent.mkdir(parents=True, exist_ok=True)
            self.happened.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def digest(model: keras.Model) -> str:
    """A hash of all weights and the optimizer on this worker."""
    found = hashlib.sha256()
    for variable in [*model.variables, *model.optimizer.variables]:
        found.update(np.asarray(variable.numpy()).tobytes())
    return found.hexdigest()


def main() -> None:
    """Train, and print the digest."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    directory = Path("runs/multi-worker")
    parser.add_argument("--checkpoint-dir", type=Path, default=directory)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--kill-worker", type=int, metavar="INDEX")
    parser.add_argument("--at-step", type=int, default=20)
    arguments = parser.parse_args()

    resilient.deterministic(seed=7)
    scope, index, workers = meet()
    with scope:
        model = make_model()
    doomed = index == arguments.kill_worker
    resilient.fit(
        model,
        **training_data(index, workers),
        epochs=arguments.epochs,
        callbacks=[KillAt(doomed, arguments.at_step, arguments.checkpoint_dir)],
        verbose=2 if index == 0 else 0,
        checkpoint_dir=arguments.checkpoint_dir,
        save_freq=8,
    )
    print(f"worker {index} of {workers}: digest {digest(model)}", flush=True)


if __name__ == "__main__":
    main()
