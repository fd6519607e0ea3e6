"""The loop from TensorFlow's checkpoint guide, before and after, on real digits.

    python examples/tensorflow_guide.py --way before
    python examples/tensorflow_guide.py --way after
    python examples/tensorflow_guide.py --way after --checkpoint-dir runs/b --kill-at 13

`before` is the guide's (https://www.tensorflow.org/guide/checkpoint): a Checkpoint of
step, optimizer, model and iterator, and a CheckpointManager. The last command kills
itself (SIGKILL) after step 13. Run it again: `after` prints the digest of an
uninterrupted run; `before` would continue from its last saved step, with other samples.
"""

import argparse
import hashlib
import os
import signal
from pathlib import Path

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

import resilient

EPOCHS, STEPS, BATCH_SIZE = 5, 5, 64


class Net(keras.Model):
    """A linear model, as in the guide."""

    def __init__(self) -> None:
        super().__init__()
        self.l1 = keras.layers.Dense(10)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """The class scores."""
        return self.l1(x)


def digits() -> tf.data.Dataset:
    """Five batches an epoch, reshuffled in each."""
    x, y = load_digits(return_X_y=True)
    count = STEPS * BATCH_SIZE
    found = tf.data.Dataset.from_tensor_slices((x[:count] / 16, y[:count]))
    return found.shuffle(count).batch(BATCH_SIZE)


def train_step(net: Net, batch: tuple, optimizer: keras.optimizers.SGD) -> tf.Tensor:
    """Take one step of gradient descent; return its loss."""
    x, y = batch
    with tf.GradientTape() as tape:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, net(x))
        loss = tf.reduce_mean(losses)
    gradients = tape.gradient(loss, net.trainable_variables)
    optimizer.apply(gradients, net.trainable_variables)
    return loss


def before(net: Net, optimizer: keras.optimizers.SGD, directory: Path) -> None:
    """As in the guide."""
    step = tf.Variable(0)
    iterator = iter(digits().repeat(EPOCHS))
    checkpoint = tf.train.Checkpoint(
        step=step, optimizer=optimizer, net=net, iterator=iterator
    )
    manager = tf.train.CheckpointManager(checkpoint, directory, max_to_keep=3)
    checkpoint.restore(manager.latest_checkpoint)
    if manager.latest_checkpoint:
        print(f"Restored from {manager.latest_checkpoint}")
    else:
        print("Initializing from scratch.")
    for batch in iterator:
        loss = train_step(net, batch, optimizer)
        reached(int(step), directory)
        step.assign_add(1)
        if int(step) % STEPS == 0:
            path = manager.save()
            print(f"Saved checkpoint for step {int(step)}: {path}, loss {loss:.3f}")


def after(net: Net, optimizer: keras.optimizers.SGD, directory: Path) -> None:
    """The same with `resilient.Run`."""
    run = resilient.Run(directory, save_freq=STEPS, net=net, optimizer=optimizer)
    for _, step, batch in run.loop(digits(), epochs=EPOCHS):
        loss = train_step(net, batch, optimizer)
        run.log(loss=loss)
        reached(step, directory)


def reached(step: int, directory: Path) -> None:
    """Die after a step as if the machine were taken away, once per run."""
    happened = directory / "killed"
    if step == arguments.kill_at and not happened.exists():
        happened.touch()
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--way", choices=("before", "after"), default="after")
    parser.add_argument("--checkpoint-dir", type=Path, default=Path("runs/guide"))
    parser.add_argument("--kill-at", type=int, metavar="STEP")
    arguments = parser.parse_args()
    resilient.deterministic(seed=7)
    net, optimizer = Net(), keras.optimizers.SGD(0.1)
    way = before if arguments.way == "before" else after
    way(net, optimizer, arguments.checkpoint_dir / arguments.way)
    found = hashlib.sha256()
    for variable in [*net.variables, *optimizer.variables]:
        found.update(variable.numpy().tobytes())
    print("digest", found.hexdigest())
