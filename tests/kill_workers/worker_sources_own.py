"""What processes train on of which each is given its own data."""

import os
from contextlib import contextmanager
from functools import partial

import keras
from worker_data import BATCH, SAMPLES, Batches, X, Y, generated, in_groups

if keras.backend.backend() == "jax":
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
keras.distribution.initialize()
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
HALF = slice(RANK * SAMPLES // 2, (RANK + 1) * SAMPLES // 2)
ours = {"size": BATCH // 2, "rows": HALF}


@contextmanager
def divided(*, shard=False):
    distribution = keras.distribution.DataParallel(auto_shard_dataset=shard)
    keras.distribution.set_distribution(distribution)
    yield


SCOPE = divided


@contextmanager
def one_model():
    mesh = keras.distribution.DeviceMesh((1, WORLD), ("batch", "model"))
    layout = keras.distribution.LayoutMap(mesh)
    layout["dense.*kernel"] = (None, None)
    distribution = keras.distribution.ModelParallel(
        layout_map=layout, batch_dim_name="batch", auto_shard_dataset=False
    )
    keras.distribution.set_distribution(distribution)
    yield


def tf_data(size=BATCH, rows=slice(None)):
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices((X[rows], Y[rows]))
    return data.shuffle(9, seed=4).batch(size, drop_remainder=True)


def loader(size=BATCH, rows=slice(None), seed=3):
    from torch import Generator, as_tensor
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(as_tensor(X[rows]), as_tensor(Y[rows]))
    random = Generator().manual_seed(seed)
    return DataLoader(data, size, shuffle=True, generator=random)


def grain_data(size=BATCH, rows=slice(None)):
    import grain

    data = grain.MapDataset.source(range(SAMPLES)[rows]).shuffle(seed=4)
    return data.map(lambda n: (X[n], Y[n])).batch(size)


def cases(directory, group):
    mine = {"x": X[HALF], "y": Y[HALF], "batch_size": BATCH // 2}
    whole = {"x": X, "y": Y, "batch_size": BATCH}
    steps = {"steps_per_epoch": 6}

    def validated(data, **more):
        return 1, {**mine, "validation_data": data, **more}

    def apart(data, **more):
        return 1, {"x": data, **more}

    found = {
        "arrays": (lambda: (RANK, mine), divided),
        "arrays by batch": (lambda: (RANK, {**mine, "shuffle": "batch"}), divided),
        "arrays alike": (lambda: (1, {**whole, "batch_size": BATCH // 2}), divided),
        "pydataset": (lambda: apart(Batches(shuffled=True, **ours)), divided),
        "generator": (lambda: apart(generated(**ours), **steps), divided),
        "generator ends": (lambda: apart(generated(epochs=3, **ours)), divided),
        "validated on arrays": (lambda: validated((X[HALF], Y[HALF])), divided),
        "validated on pydataset": (lambda: validated(Batches(**ours)), divided),
        "divided arrays": (lambda: (1, whole), partial(divided, shard=True)),
        "one model": (lambda: (1, whole), one_model),
        "one model, unequal": (lambda: (1, {**whole, "x": X + RANK}), one_model),
        "validated on generator": (
            lambda: validated(generated(**ours), validation_steps=6),
            divided,
        ),
    }
    others = {
        "loader": (lambda: apart(loader(**ours)), divided),
        "tf.data": (lambda: apart(tf_data(**ours)), divided),
        "grain": (lambda: apart(grain_data(**ours)), divided),
        "validated on loader": (lambda: validated(loader(**ours)), divided),
        "divided tf.data": (lambda: apart(tf_data()), partial(divided, shard=True)),
        "one model, loader": (lambda: apart(loader()), one_model),
    }
    few = ("arrays", "arrays alike", "divided arrays", "one model", "pydataset")
    few += ("one model, unequal",)
    return in_groups(found, others, group, more=lambda name: name not in few)
