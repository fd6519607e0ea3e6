"""Train on handwritten digits with workers, a parameter server, and checkpoints.

    resilient run --dir runs/ps -- python examples/parameter_server.py

Keras 3's `fit` does not support TensorFlow's ParameterServerStrategy, so this is a
custom loop with a ClusterCoordinator. This process is the coordinator; it starts two
workers and a parameter server on this machine, and they end when it does.

    resilient run --dir runs/a -- python examples/parameter_server.py \
        --checkpoint-dir runs/a --kill worker --at-step 150

`--kill worker` kills a worker (SIGKILL): TensorFlow gives its steps to the other one,
and it is started again. `--kill coordinator` kills this process: `resilient run` runs
it again, and it resumes from its last checkpoint.

Guaranteed: a checkpoint holds all variables as they were when no step was running, and
all of them come back, byte for byte; steps since the last checkpoint are done again.
Not guaranteed: workers apply their updates in no particular order, each draws the
digits in its own order, which starts over with the worker, and a step whose worker died
may have been applied before it is done again.
"""

import argparse
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

# Must be set before importing Keras.
os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import resilient

SERVER = Path(__file__).with_name("tensorflow_server.py")
HOST, WORKERS, BATCH_SIZE, SAVE_EVERY, HELD_OUT = "127.0.0.1", 2, 32, 50, 297


class Servers:
    """The workers and the parameter server, each a process on this machine."""

    def __init__(self) -> None:
        with ExitStack() as stack:
            sockets = [stack.enter_context(socket.socket()) for _ in range(WORKERS + 1)]
            for each in sockets:
                each.bind((HOST, 0))
            parameters, *workers = [f"{HOST}:{s.getsockname()[1]}" for s in sockets]
        self.cluster = {"worker": workers, "ps": [parameters]}
        self.workers: dict[int, subprocess.Popen[bytes]] = {}
        self._start("ps", 0)
        for number in range(WORKERS):
            threading.Thread(target=self._keep, args=(number,), daemon=True).start()

    def _start(self, role: str, number: int) -> "subprocess.Popen[bytes]":
        task = {"cluster": self.cluster, "task": {"type": role, "index": number}}
        return subprocess.Popen(
            [sys.executable, SERVER],
            env=os.environ | {"TF_CONFIG": json.dumps(task)},
            stdin=subprocess.PIPE,  # closes when we end, however we end
        )

    def _keep(self, number: int) -> None:
        """Restart a worker whenever it dies, as a cluster would."""
        while True:
            self.workers[number] = self._start("worker", number)
            status = self.workers[number].wait()
            print(f"worker {number} ended with {status}: starting it again", flush=True)


def make_model() -> keras.Model:
    """A small CNN."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(0.3),
            layers.Dense(10),
        ]
    )


def load(part: slice) -> tuple[np.ndarray, np.ndarray]:
    """Some of the digits, and their labels."""
    digits = load_digits()
    images = digits.images[..., None].astype("float32") / 16
    return images[part], digits.target[part]


def make_dataset(images: np.ndarray, labels: np.ndarray) -> tf.data.Dataset:
    """A worker's data, created on each worker when it starts."""
    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    return dataset.shuffle(len(images)).repeat().batch(BATCH_SIZE)


def make_step(
    strategy: tf.distribute.Strategy,
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
) -> Callable[..., tf.Tensor]:
    """A function that trains on one worker's next batch."""
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def train(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    @tf.function(autograph=False)
    def step(batches: tf.data.Iterator) -> tf.Tensor:
        return strategy.run(train, args=next(batches))

    return step


def digest(variables: list[keras.Variable]) -> str:
    """A hash of all variables."""
    found = hashlib.sha256()
    for variable in variables:
        found.update(np.asarray(variable.numpy()).tobytes())
    return found.hexdigest()


def accuracy(model: keras.Model) -> float:
    """The accuracy on held-out digits, of a copy of the model in this process."""
    images, labels = load(slice(HELD_OUT))
    copy = make_model()
    copy.set_weights(model.get_weights())
    return float((copy.predict(images, verbose=0).argmax(-1) == labels).mean())


def kill(who: str, directory: Path, servers: Servers) -> None:
    """Kill a worker or ourselves, once per run."""
    happened = directory / "killed"
    if not happened.exists():
        happened.touch()
        print(f"killing the {who}", flush=True)
        pid = servers.workers[1].pid if who == "worker" else os.getpid()
        os.kill(pid, signal.SIGKILL)


def train(steps: int, directory: Path, who: str | None, at_step: int) -> None:
    """Coordinate the training, resuming if there is a checkpoint."""
    servers = Servers()
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(servers.cluster), rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    with strategy.scope():  # variables live on the parameter server
        model, optimizer = make_model(), keras.optimizers.Adam(2e-3)
        optimizer.build(model.trainable_variables)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    digits = load(slice(HELD_OUT, None))
    dataset = coordinator.create_per_worker_dataset(lambda: make_dataset(*digits))
    batches = iter(dataset)
    step_function = make_step(strategy, model, optimizer)

    variables = [*model.variables, *optimizer.variables]
    with resilient.Checkpoints(directory, variables) as checkpoints:
        step = checkpoints.restore()
        print(f"begin at step {step}: digest {digest(variables)}", flush=True)
        while step < steps:
            for _ in range(min(SAVE_EVERY, steps - step)):
                loss = coordinator.schedule(step_function, args=(batches,))
                step += 1
                if who is not None and step == at_step:
                    kill(who, directory, servers)
            # Wait for all steps: nothing may change while we save.
            coordinator.join()
            # Keras reads the count and then writes it, so workers doing so at the same
            # time count two steps as one. We know the right count.
            optimizer.iterations.assign(step)
            checkpoints.save(step)
            print(
                f"saved step {step}: loss {loss.fetch():.3f}, "
                f"digest {digest(variables)}",
                flush=True,
            )
    print(f"{step} steps done: accuracy {accuracy(model):.3f}", flush=True)


def main() -> None:
    """Parse the arguments, and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint-dir", type=Path, default=Path("runs/ps"))
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--kill", choices=["worker", "coordinator"])
    parser.add_argument("--at-step", type=int, default=0)
    arguments = parser.parse_args()
    train(
        arguments.steps,
        arguments.checkpoint_dir,
        arguments.kill,
        arguments.at_step,
    )


if __name__ == "__main__":
    main()
