"""Several devices in one process: TensorFlow's ``MirroredStrategy``, on two."""

from typing import Any

import keras
import numpy as np
from keras import layers

from .registry import Case, scenario

KILLS = ("train_batch_end@1:3", "train_batch_end@1:5")  # twice in one epoch


class Batches(keras.utils.PyDataset):
    """The arrays, batch by batch."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        super().__init__()
        self.x, self.y = x, y

    @property
    def num_batches(self) -> int:
        return -(-len(self.x) // 8)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        rows = slice(8 * index, 8 * index + 8)
        return self.x[rows], self.y[rows]


def compiled() -> keras.Model:
    """A model with a component of each variable on each of two logical devices."""
    import tensorflow as tf

    (cpu,) = tf.config.list_physical_devices("CPU")
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, two)
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = keras.Sequential(
            [
                keras.Input((8,)),
                layers.Dense(8),
                layers.BatchNormalization(),
                layers.Dropout(0.3),
                layers.Dense(3),
            ]
        )
        model.compile(
            keras.optimizers.Adam(0.01, use_ema=True),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    return model


def rows() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.RandomState(0)
    return random.rand(52, 8).astype("float32"), random.randint(0, 3, 52)


def of_batches(make: Any) -> Case:
    model, (x, y) = compiled(), rows()
    validation = make(x[:20], y[:20])
    settings = {"epochs": 3, "verbose": 0, "validation_data": validation}
    return Case(model, (make(x, y),), settings)


# A minute; tests/kill_workers/ kills replicas in the short session.
@scenario(
    *("epoch_end@0", *KILLS), save_freq=2, backends=["tensorflow"], slow=["tensorflow"]
)
def mirrored_arrays() -> Case:
    """First resumed at a batch that is smaller than the others."""
    model, (x, y) = compiled(), rows()
    settings = {"epochs": 3, "verbose": 0, "batch_size": 8}
    settings["validation_data"] = (x[:20], y[:20])
    return Case(model, (x, y), settings)


@scenario(*KILLS, save_freq=2, backends=["tensorflow"], slow=["tensorflow"])
def mirrored_tf_data() -> Case:
    import tensorflow as tf

    def make(x: np.ndarray, y: np.ndarray) -> Any:
        return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(30, seed=3).batch(8)

    return of_batches(make)


@scenario(*KILLS, save_freq=2, backends=["tensorflow"], slow=["tensorflow"])
def mirrored_py_dataset() -> Case:
    return of_batches(Batches)
