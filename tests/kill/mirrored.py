"""One attempt under ``MirroredStrategy`` on two logical devices, in a fresh process.

    python mirrored.py {keras|resilient} SOURCE DIRECTORY [EPOCH:BATCH]

Prints the losses and a digest over every replica's component of every variable.
"""

import hashlib
import os
import signal
import sys

import keras
import numpy as np
import tensorflow as tf

import resilient


class Kill(keras.callbacks.Callback):
    """SIGKILLs this process after a batch."""

    def __init__(self, at: str | None) -> None:
        super().__init__()
        self._at = tuple(map(int, at.split(":"))) if at else None
        self._epoch = 0

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if self._at == (self._epoch, batch):
            os.kill(os.getpid(), signal.SIGKILL)


def make_model() -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(8),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(3),
        ]
    )
    model.compile(
        keras.optimizers.Adam(0.01, use_ema=True),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


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


def tf_data(x: np.ndarray, y: np.ndarray) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(30, seed=3).batch(8)


def main(how: str, source: str, directory: str, kill_at: str | None = None) -> None:
    (cpu,) = tf.config.list_physical_devices("CPU")
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, two)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    keras.utils.set_random_seed(1)
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = make_model()
    random = np.random.RandomState(0)
    x, y = random.rand(52, 8).astype("float32"), random.randint(0, 3, 52)
    arguments = {"epochs": 3, "verbose": 0, "callbacks": [Kill(kill_at)]}
    if source == "arrays":
        arguments |= {"x": x, "y": y, "batch_size": 8}
        arguments["validation_data"] = (x[:20], y[:20])
    else:
        make = {"tf.data": tf_data, "PyDataset": Batches}[source]
        arguments["x"] = make(x, y)
        arguments["validation_data"] = make(x[:20], y[:20])
    if how == "keras":
        history = model.fit(**arguments)
    else:
        history = resilient.fit(
            model, checkpoint_dir=directory, save_freq=2, **arguments
        )
    digest = hashlib.sha256(repr(history.history).encode())
    state = model.variables + model.optimizer.variables + model.metrics_variables
    for variable in state:
        value = variable.value
        for component in getattr(value, "values", (value,)):
            digest.update(component.numpy().tobytes())
    print(history.history["loss"], digest.hexdigest())


if __name__ == "__main__":
    main(*sys.argv[1:])
