"""Processes that do not go the same way: each run ends with an error, none hangs.

    python worker_trouble.py DIRECTORY CASE

Prints the error of this process.
"""

import os
import sys

import keras
import worker_sources
from own_data import OWN_DATA
from worker_data import BATCH, Batches, generated

import resilient

# Alike where each process has rows of all batches; elsewhere each has its own.
PART = {"size": BATCH // 2} if OWN_DATA else {"size": BATCH}


class StopIn(keras.callbacks.Callback):
    """Sets stop_training in one process, once."""

    def __init__(self, rank, *, batch=None):
        super().__init__()
        self._mine, self._batch = rank == worker_sources.RANK, batch

    def on_train_batch_end(self, batch, logs=None):
        if self._mine and batch == self._batch:
            self.model.stop_training = True

    def on_epoch_end(self, epoch, logs=None):
        if self._mine and self._batch is None:
            self.model.stop_training = True


class Die(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if worker_sources.RANK == 1 and batch == 2:
            os._exit(0)


class ChangeWeights(keras.callbacks.Callback):
    """Changes weights in process 1 alone."""

    def on_train_batch_end(self, batch, logs=None):
        if worker_sources.RANK == 1:
            for variable in self.model.trainable_variables:
                variable.assign(2 * variable)


class OwnOptimizer(keras.Sequential):
    """Trains with an optimizer of torch, whose gradients nobody averages."""

    def train_step(self, data):
        import torch

        x, y = data[:2]
        weights = [variable.value for variable in self.trainable_variables]
        optimizer = torch.optim.SGD(weights, 0.1)
        optimizer.zero_grad()
        self.compute_loss(x, y, self(x, training=True)).backward()
        optimizer.step()
        return {}


def made_model(name):
    if name != "an optimizer of torch":
        return worker_sources.made_model()
    model = OwnOptimizer([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(loss="mse")
    return model


class Shorter(Batches):
    """One batch less in process 1."""

    def __len__(self):
        return super().__len__() - worker_sources.RANK


KEY = "canary-0123456789abcdef"
KEYS = {
    "0 has no key": (None, KEY),
    "1 has no key": (KEY, None),
    "1 has another key": (KEY, KEY[::-1]),
}


def limited(count):
    source = generated(**PART)
    for _ in range(count):
        yield next(source)


def cases():
    rank = worker_sources.RANK
    whole = {"x": Batches(**PART), "validation_data": Batches(**PART)}
    return {
        "length": {"x": Shorter(**PART)},
        "unknown length, 0 is longer": {"x": limited(5 - rank)},
        "unknown length, 1 is longer": {"x": limited(4 + rank)},
        "steps": {"x": generated(**PART), "steps_per_epoch": 4 + rank},
        "validation": {**whole, "validation_data": Shorter(**PART)},
        "validation, unknown": {**whole, "validation_data": limited(4 + rank)},
        "1 validates alone": {
            "x": Batches(**PART),
            "validation_data": Batches(**PART) if rank else None,
        },
        "1 is lost": {**whole, "callbacks": [Die()]},
        "0 stops in the epoch": {**whole, "callbacks": [StopIn(0, batch=2)]},
        "1 stops in the epoch": {**whole, "callbacks": [StopIn(1, batch=2)]},
        "0 stops at its end": {**whole, "callbacks": [StopIn(0)]},
        "1 stops at its end": {**whole, "callbacks": [StopIn(1)]},
        "1 changes weights": {**whole, "callbacks": [ChangeWeights()]},
        "an optimizer of torch": whole,
        **dict.fromkeys(KEYS, whole),
    }


def main(directory, name):
    if key := KEYS.get(name, (None, None))[worker_sources.RANK]:
        os.environ["RESILIENT_KEY"] = key
    keras.utils.set_random_seed(1)
    module = worker_sources.module()
    with module.SCOPE():
        model = made_model(name)
        try:
            resilient.fit(
                model, checkpoint_dir=directory, epochs=3, verbose=0, **cases()[name]
            )
        except resilient.errors.ResilientError as error:
            print(f"{type(error).__name__}: {error}", flush=True)
            sys.exit(3)
    print("no error", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
