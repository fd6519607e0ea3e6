"""What snippets may take for granted: a model and data, small and of real digits."""

import socket
from typing import Any

import keras
import numpy as np
from sklearn.datasets import load_digits

import resilient

KEPT, TRAINED = 384, 320


def make_model() -> keras.Model:
    """A compiled classifier of digits."""
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    return model


class Curriculum:
    """Somebody's object with a state."""

    level = 0

    def state_dict(self) -> dict[str, int]:
        return {"level": self.level}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.level = state["level"]


class Given:
    """Each attribute is a name that a snippet may be given."""

    make_model = staticmethod(make_model)

    def __init__(self) -> None:
        images, labels = load_digits(return_X_y=True)
        x, y = (images[:KEPT] / 16).astype("float32"), labels[:KEPT].astype("int32")
        self.x, self.x_val = np.split(x, [TRAINED])
        self.y, self.y_val = np.split(y, [TRAINED])

    @property
    def model(self) -> keras.Model:
        return make_model()

    @property
    def resolver(self) -> Any:
        """Of a cluster within this process: a worker and a parameter server."""
        import tensorflow as tf

        with socket.socket() as one, socket.socket() as other:
            for each in (one, other):
                each.bind(("127.0.0.1", 0))
            ports = [each.getsockname()[1] for each in (one, other)]
        tasks = zip(("worker", "ps"), ports, strict=True)
        cluster = tf.train.ClusterSpec({t: [f"127.0.0.1:{p}"] for t, p in tasks})
        for job in cluster.jobs:
            tf.distribute.Server(cluster, job, 0)
        return tf.distribute.cluster_resolver.SimpleClusterResolver(
            cluster, rpc_layer="grpc"
        )

    def of_docstrings(self) -> dict[str, Any]:
        """What the examples of docstrings take for granted."""
        model = self.model
        model.optimizer.build(model.trainable_variables)
        model.test_on_batch(self.x, self.y)  # its metrics, before a loop begins
        model.reset_metrics()
        return {
            "resilient": resilient,
            "model": model,
            "optimizer": model.optimizer,
            "x": self.x,
            "y": self.y,
            "steps": 3,
            "dataset": (self.x, self.y),
            "train_some_steps": lambda step: step + 1,
            "train_step": lambda batch: model.train_on_batch(*batch)[0],
            "evaluate": lambda: 1.0,
            "run": resilient.Run("runs/given", model=model),
        }

    @property
    def curriculum(self) -> Curriculum:
        return Curriculum()

    @property
    def callbacks(self) -> list[Any]:
        return [keras.callbacks.EarlyStopping("val_loss", patience=3)]
