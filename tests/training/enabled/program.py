"""A program of many fits that knows nothing of us, but for the callback if it is told.

    program.py OUT KILLS [callback DIRECTORY]

Of its attempts (counted in a file beside OUT), the n-th is killed after as many batches
as the n-th number of KILLS; those that are left run to the end, and write OUT.
"""

import os
import random
import signal
import sys
from pathlib import Path

import keras
import numpy as np

OUT, KILLS = Path(sys.argv[1]), [int(n) for n in sys.argv[2].split(",")]
COUNT = OUT.with_suffix(".attempts")
ATTEMPT = int(COUNT.read_text()) if COUNT.exists() else 0
COUNT.write_text(str(ATTEMPT + 1))
KILL = dict(enumerate(KILLS)).get(ATTEMPT)
if sys.argv[3:]:
    import resilient

rng = np.random.default_rng(0)
X = rng.normal(size=(24, 3)).astype("float32")
Y = (X.sum(axis=1, keepdims=True) > 0).astype("float32")
left: dict[str, np.ndarray] = {}
batches = 0


class Killer(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        global batches
        batches += 1
        if batches == KILL:
            os.kill(os.getpid(), signal.SIGKILL)


class Rows(keras.utils.PyDataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        noise = np.random.normal(size=(6, 3)).astype("float32")
        rows = slice(6 * index, 6 * index + 6)
        return X[rows] + noise, Y[rows]


class Noisy(keras.Sequential):
    """Prepares its data in an overridden fit, as tasks of KerasHub do."""

    def fit(self, x, y, scale=1.0, **kwargs):
        return super().fit(x * scale, y, **kwargs)


def draws():
    """With random numbers of its own: others may draw from the global ones."""
    own = np.random.default_rng(1)
    while True:
        rows = own.permutation(24)[:6]
        yield X[rows], Y[rows]


def model(kind=keras.Sequential, rate=0.05):
    layers = keras.layers
    net = kind([layers.Dense(4, "tanh"), layers.Dropout(0.3), layers.Dense(1)])
    net.compile(keras.optimizers.Adam(rate), "mse", metrics=["mae"])
    return net


def fit(name, net, *args, callbacks=(), **kwargs):
    callbacks = [*callbacks, Killer()]
    if sys.argv[3:]:
        where = Path(sys.argv[4], name)
        backup = resilient.BackupAndRestore(where, 3, delete_checkpoint=False)
        callbacks.append(backup)
    history = net.fit(*args, verbose=0, callbacks=callbacks, **kwargs)
    for key, values in history.history.items():
        left[f"{name} {key}"] = np.array(values)
    for i, weight in enumerate([*net.weights, *net.optimizer.variables]):
        left[f"{name} weight {i}"] = keras.ops.convert_to_numpy(weight)
    left[f"{name} draws"] = np.array([random.random(), np.random.random()])


def main():
    keras.utils.set_random_seed(3 + 100 * min(ATTEMPT, 1))  # a resume overwrites it
    net = model()
    for i in range(2):
        noise = i * np.random.normal(size=X.shape)  # of the first, none yet
        fit(f"loop {i}", net, X + noise, Y, epochs=1)
    stop = keras.callbacks.EarlyStopping("val_loss", patience=1)
    fit("stopping", net, X, Y, epochs=3, validation_split=0.25, callbacks=[stop])
    net.layers[0].trainable = False
    net.compile("sgd", "mse")
    endless = draws()
    fit("tuned", net, endless, steps_per_epoch=4, epochs=2)
    if keras.backend.backend() == "tensorflow":  # drew ahead: where it is, is chance
        endless = draws()
    fit("again", net, endless, steps_per_epoch=4, epochs=1)
    for rate in (0.01, 0.1):
        fit(f"sweep {rate}", model(rate=rate), X, Y, batch_size=8, epochs=2)
    fit("overridden", model(Noisy), X, Y, scale=2.0, batch_size=8, epochs=2)
    fit("sequence", net, Rows(), epochs=2)
    np.savez(OUT, **left)


if __name__ == "__main__":
    main()
