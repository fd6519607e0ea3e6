"""What ranks of torch train on."""

import os
from contextlib import nullcontext

import keras
import torch
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    TensorDataset,
)
from worker_data import BATCH, SAMPLES, Batches, X, Y, generated, in_groups, some

SCOPE = nullcontext
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
TENSORS = TensorDataset(torch.as_tensor(X), torch.as_tensor(Y))


class Stream(IterableDataset):
    def __iter__(self):
        return iter(TENSORS)


class Sampler(keras.callbacks.Callback):
    def __init__(self, sampler):
        super().__init__()
        self.sampler = sampler

    def on_epoch_begin(self, epoch, logs=None):
        self.sampler.set_epoch(epoch)


def loader(dataset=TENSORS, **options):
    return DataLoader(dataset, batch_size=BATCH, **options)


def distributed(**options):
    sampler = DistributedSampler(TENSORS, num_replicas=WORLD, rank=RANK, **options)
    data = DataLoader(TENSORS, batch_size=BATCH // WORLD, sampler=sampler)
    return {"x": data, "callbacks": [Sampler(sampler)]}


def tf_data():
    import tensorflow as tf

    tf.random.set_seed(1)  # before `plain` as it is before `ours`
    return tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(9, seed=4).batch(BATCH)


def grain_data():
    import grain

    data = grain.MapDataset.source(range(SAMPLES)).shuffle(seed=4)
    return data.map(lambda n: (X[n], Y[n])).batch(BATCH)


def seeded(number=3):
    return torch.Generator().manual_seed(number)


def cases(directory, group):
    x, y = X, Y
    arrays = {"x": x, "y": y, "batch_size": BATCH}
    found = {
        "arrays": lambda: (RANK, arrays),
        "arrays by batch": lambda: (RANK, {**arrays, "shuffle": "batch"}),
        "arrays in order": lambda: (1, {**arrays, "shuffle": False}),
        "arrays uneven": lambda: (1, {"x": x[:45], "y": y[:45], "batch_size": BATCH}),
        "arrays split": lambda: (1, {**arrays, "validation_split": 1 / 3}),
        "arrays different": lambda: (1, {**arrays, "x": x + RANK}),
        "loader": lambda: (1, {"x": loader()}),
        "loader seeded": lambda: (1, {"x": loader(shuffle=True, generator=seeded())}),
        "loader global": lambda: (1, {"x": loader(shuffle=True)}),
        "loader unequal": lambda: (RANK, {"x": loader(shuffle=True)}),
        "sampler": lambda: (1, distributed()),
        "workers": lambda: (
            1,
            {"x": loader(shuffle=True, num_workers=2, generator=seeded())},
        ),
        "stream": lambda: (1, {"x": loader(Stream())}),
        "pydataset": lambda: (1, {"x": Batches(shuffled=True)}),
        "pydataset workers": lambda: (1, {"x": Batches(shuffled=True, workers=2)}),
        "generator": lambda: (1, {"x": generated(), "steps_per_epoch": 6}),
        "generator ends": lambda: (1, {"x": generated(epochs=3)}),
        "generator unequal": lambda: (
            1,
            {"x": generated(seed=RANK), "steps_per_epoch": 6},
        ),
    }
    others = {
        "tf.data": lambda: (1, {"x": tf_data()}),
        "grain": lambda: (1, {"x": grain_data()}),
        "validated on tf.data": lambda: (1, {**arrays, "validation_data": tf_data()}),
        "validated on grain": lambda: (1, {**arrays, "validation_data": grain_data()}),
    }
    validations = {
        "arrays": some,
        "loader": lambda: loader(shuffle=True, generator=seeded()),
        "sampler": lambda: distributed()["x"],
        "pydataset": lambda: Batches(shuffled=True),
        "generator": generated,
    }
    for name, make in validations.items():

        def case(name=name, make=make):
            steps = {"validation_steps": 6} if name == "generator" else {}
            return 1, {**arrays, "validation_data": make(), **steps}

        found[f"validated on {name}"] = case
    more = {name for name in found if "validated on" in name}
    more |= {
        "arrays by batch",
        "arrays in order",
        "arrays split",
        "loader",
        "loader global",
        "generator ends",
        "pydataset workers",
    }
    found = in_groups(found, others, group, more=more.__contains__)
    return {name: (case, nullcontext) for name, case in found.items()}
