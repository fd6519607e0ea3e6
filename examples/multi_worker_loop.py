"""A custom loop under MultiWorkerMirroredStrategy, with a worker that dies.

    resilient run --nproc 2 -- python examples/multi_worker_loop.py
    resilient run --nproc 2 -- python examples/multi_worker_loop.py \
        --checkpoint-dir runs/b --kill-worker 1 --at-step 20

The second command kills a worker (SIGKILL) in the middle of an epoch. `resilient run`
restarts all workers, they continue with the batch after the last checkpoint, and each
prints the same digest as with the first command, a hash of model, optimizer and logs.
Nothing here saves or restores. TensorFlow's tutorial has to handle the chief, temporary
directories for the others, and counting batches.
"""

import argparse
import hashlib
import json
import os
import signal
from pathlib import Path

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import resilient

BATCH_SIZE = 128  # global


def dataset() -> tf.data.Dataset:
    """The digits; the loop gives each worker its share of every batch."""
    digits = load_digits()
    images = digits.images[:1792].astype("float32") / 16
    found = tf.data.Dataset.from_tensor_slices((images, digits.target[:1792]))
    return found.shuffle(1792, seed=7).batch(BATCH_SIZE)


def make_model() -> keras.Model:
    """A small CNN with dropout."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 8)),
            layers.Reshape((8, 8, 1)),
            layers.Conv2D(16, 3, activation="relu"),
            layers.Flatten(),
            layers.Dropout(0.2),
            layers.Dense(10),
        ]
    )


def kill_once(directory: Path) -> None:
    """Die as if the machine were taken away, once per run."""
    happened = directory / "killed"
    if not happened.exists():
        happened.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Train, and print the digest."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    directory = Path("runs/multi-worker-loop")
    parser.add_argument("--checkpoint-dir", type=Path, default=directory)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--kill-worker", type=int, metavar="INDEX")
    parser.add_argument("--at-step", type=int, default=20)
    arguments = parser.parse_args()

    resilient.deterministic(seed=7)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    index = strategy.cluster_resolver.task_id or 0
    with strategy.scope():
        model = make_model()
        optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    loss_of = keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction="none"
    )

    def step_of_a_replica(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            losses = loss_of(labels, model(images, training=True))
            loss = tf.reduce_sum(losses) / BATCH_SIZE
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    @tf.function
    def train_step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        losses = strategy.run(step_of_a_replica, args=(images, labels))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    run = resilient.Run(
        arguments.checkpoint_dir,
        save_freq=8,
        verbose=int(index == 0),
        model=model,
        optimizer=optimizer,
    )
    for epoch, step, (images, labels) in run.loop(dataset(), epochs=arguments.epochs):
        run.log(loss=train_step(images, labels))
        if index == 0 and step % 14 == 13:
            print(f"epoch {epoch}: loss {run.history['loss'][-1]:.4f}", flush=True)
        if (index, step) == (arguments.kill_worker, arguments.at_step):
            kill_once(arguments.checkpoint_dir)

    found = hashlib.sha256(json.dumps(run.history["loss"]).encode())
    for variable in [*model.variables, *optimizer.variables]:
        found.update(np.asarray(variable.numpy()).tobytes())
    print(f"worker {index}: digest {found.hexdigest()}", flush=True)


if __name__ == "__main__":
    main()
