"""One process of a training that goes on in another layout each time.

    python elastic_worker.py DIRECTORY DEVICES DATA [RANK:BATCH]

With the variables of a gang, or none; DATA is "arrays" or "tf.data"; the process of
that rank is killed after so many batches of its life. Prints, as lines of JSON, what it
trained, and what the shared weights were before each batch.
"""

import contextlib
import hashlib
import itertools
import json
import os
import signal
import sys

DIRECTORY, DEVICES, DATA, *KILL = sys.argv[1:]
BACKEND = os.environ["KERAS_BACKEND"]
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))

if BACKEND == "jax":
    flag = f" --xla_force_host_platform_device_count={DEVICES}"
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + flag
    import jax

    if WORLD > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")

if BACKEND == "torch":
    import torch

import keras  # noqa: E402
import numpy as np  # noqa: E402
from own_data import OWN_DATA  # noqa: E402
from support.waited import wait_for_each_save  # noqa: E402

import resilient  # noqa: E402


def scope():
    """What the model is made in."""
    if BACKEND == "jax":
        if WORLD > 1:
            keras.distribution.initialize()
        keras.distribution.set_distribution(keras.distribution.DataParallel())
    elif OWN_DATA:
        if WORLD > 1:
            keras.distribution.initialize()
        else:
            alone = torch.distributed.HashStore()
            torch.distributed.init_process_group(
                "gloo", store=alone, rank=0, world_size=1
            )
        keras.distribution.set_distribution(one_model())
    if BACKEND != "tensorflow":
        return contextlib.nullcontext()
    import tensorflow as tf

    tf.config.experimental.enable_op_determinism()
    if WORLD > 1:
        return tf.distribute.MultiWorkerMirroredStrategy().scope()
    (cpu,) = tf.config.list_physical_devices("CPU")
    devices = [tf.config.LogicalDeviceConfiguration()] * int(DEVICES)
    tf.config.set_logical_device_configuration(cpu, devices)
    names = [f"CPU:{number}" for number in range(int(DEVICES))]
    return tf.distribute.MirroredStrategy(names).scope()


def one_model():
    """All processes have one model together, each its part, and train the same rows."""
    mesh = keras.distribution.DeviceMesh((1, WORLD), ("batch", "model"))
    layouts = keras.distribution.LayoutMap(mesh)
    layouts["wide/kernel"] = (None, "model")
    layouts["wide/bias"] = ("model",)
    return keras.distribution.ModelParallel(
        layout_map=layouts, batch_dim_name="batch", auto_shard_dataset=False
    )


def bytes_of(variable):
    """Of the first copy that this process has, or of what all have together."""
    value = variable.value
    if BACKEND == "jax":
        value = value.addressable_data(0)
    elif BACKEND == "tensorflow":
        value = getattr(value, "values", (value,))[0].numpy()
    else:
        value = keras.ops.convert_to_numpy(value)
    return np.asarray(value).tobytes()


def digest(model):
    """Of what all replicas have in common."""
    found = hashlib.sha256()
    for variable in [*model.trainable_variables, *model.optimizer.variables]:
        found.update(bytes_of(variable))
    return found.hexdigest()


LIFE = itertools.count(1)  # what callbacks count is restored with them


class Told(keras.callbacks.Callback):
    """Tells what is about to be trained on, and dies when it is to."""

    def __init__(self) -> None:
        super().__init__()
        self._epoch = 0

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if BACKEND != "jax":  # which trains outside of the variables
            self._tell(batch=[self._epoch, batch], weights=digest(self.model))

    def on_train_batch_end(self, batch, logs=None):
        batches = next(LIFE)
        if [f"{RANK}:{batches}"] == KILL:
            os.kill(os.getpid(), signal.SIGKILL)

    def _tell(self, **fields):
        print(json.dumps({"rank": RANK, **fields}), flush=True)


class Model(keras.Sequential):
    """On torch it tells which rows it trains: their first feature is their number."""

    def train_step(self, data):
        if RANK == 0 or not OWN_DATA:  # of one model all have the same
            rows = [int(row) for row in keras.ops.convert_to_numpy(data[0])[:, 0]]
            print(json.dumps({"rank": RANK, "rows": rows}), flush=True)
        return super().train_step(data)


def make_model():
    kind = Model if BACKEND == "torch" else keras.Sequential
    model = kind(
        [
            keras.Input((8,)),
            keras.layers.Dense(8, name="wide"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3, seed=7),  # of its own: not what orders draw from
            keras.layers.Dense(3),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01, use_ema=True), loss, metrics=["accuracy"])
    return model


def data():
    """Keyword arguments of fit."""
    random = np.random.RandomState(0)
    x, y = random.rand(48, 8).astype("float32"), random.randint(0, 3, 48)
    x[:, 0] = np.arange(48)
    if DATA == "arrays":
        return {"x": x, "y": y, "batch_size": 8}
    import tensorflow as tf

    options = tf.data.Options()
    policy = tf.data.experimental.AutoShardPolicy.DATA
    options.experimental_distribute.auto_shard_policy = policy
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(48, seed=3).batch(8)
    return {"x": dataset.with_options(options), "shuffle": False}


def main() -> None:
    wait_for_each_save()  # so that there is one to go on from
    keras.utils.set_random_seed(1)
    with scope():
        model = make_model()
    history = resilient.fit(
        model,
        **data(),
        epochs=3,
        verbose=0,
        callbacks=[Told()],
        checkpoint_dir=DIRECTORY,
        save_freq=2,
    )
    end = {"rank": RANK, "history": history.history, "weights": digest(model)}
    print(json.dumps({"end": end}), flush=True)


main()
