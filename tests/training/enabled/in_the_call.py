"""A program whose callback is made in some form, killed after some batches.

    in_the_call.py FORM OUT KILL [DIRECTORY]

Without a DIRECTORY it trains without ``BackupAndRestore``. It writes the weights, the
losses and how many batches it trained to OUT.
"""

import functools
import os
import signal
import sys
from pathlib import Path

import keras
import numpy as np
from support.waited import wait_for_the_first_save

import resilient

FORM, OUT, KILL, *DIRECTORY = sys.argv[1:]
HOW = {"batch_size": 6, "epochs": 3, "verbose": 0}
batches = 0


class Killer(keras.callbacks.Callback):
    """Counts the batches of this process alone: no resume is to continue that."""

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass

    def on_train_batch_end(self, batch, logs=None):
        global batches
        batches += 1
        if batches == int(KILL):
            os.kill(os.getpid(), signal.SIGKILL)


class Own(keras.Sequential):
    def fit(self, x, y, scale=1.0, **kwargs):
        return super().fit(x / scale, y, **kwargs)


def made():
    options = {"save_freq": 3, "delete_checkpoint": False}
    return [*(resilient.BackupAndRestore(d, **options) for d in DIRECTORY), Killer()]


def in_the_call(net, x, y):
    return net.fit(x, y, callbacks=made(), **HOW)


def overridden(net, x, y):
    return net.fit(x * 2, y, scale=2.0, callbacks=made(), **HOW)


def looked_up_before(net, x, y):
    fit = net.fit
    return fit(x, y, callbacks=made(), **HOW)


def by_partial(net, x, y):
    return functools.partial(net.fit, x, y, **HOW)(callbacks=made())


def in_a_callback_list(net, x, y):
    given = {"add_history": True, "model": net, "epochs": HOW["epochs"]}
    return net.fit(x, y, callbacks=keras.callbacks.CallbackList(made(), **given), **HOW)


def wrapped_by_another_library(net, x, y):
    plain = keras.Model.fit
    calls = []

    def counted(self, *args, **given):
        calls.append(self)
        return plain(self, *args, **given)

    keras.Model.fit = counted
    try:
        return net.fit(x, y, callbacks=made(), **HOW)
    finally:
        keras.Model.fit = plain


def twice(net, x, y):
    callbacks = made()
    net.fit(x, y, callbacks=callbacks, **HOW)
    return net.fit(x + 1, y, callbacks=callbacks, **HOW)


def main():
    wait_for_the_first_save()
    keras.utils.set_random_seed(3)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(24, 3)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    kind = Own if FORM == "overridden" else keras.Sequential
    net = kind(
        [keras.layers.Dense(4), keras.layers.Dropout(0.3), keras.layers.Dense(1)]
    )
    net.compile("adam", "mse")
    history = globals()[FORM](net, x, y)
    weights = {f"weight {i}": np.array(w) for i, w in enumerate(net.get_weights())}
    np.savez(Path(OUT), loss=history.history["loss"], batches=batches, **weights)


if __name__ == "__main__":
    main()
