"""Prints which libraries `resilient.fit` imports that `model.fit` does not.

Run in a process of its own, with a directory that is empty.
"""

import json
import os
import re
import sys
import warnings
from pathlib import Path

import keras
import numpy as np

ROOT = Path(sys.argv[1])
# Not `keras.utils.set_random_seed`: it imports TensorFlow.
NUMBERS = np.random.default_rng(0)
X = NUMBERS.normal(size=(12, 3)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def sequential():
    layers = [
        keras.Input((3,)),
        keras.layers.Dense(4, activation="relu", kernel_regularizer="l2"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(1),
    ]
    return keras.Sequential(layers), "adam"


def functional():
    inputs = keras.Input((3,))
    hidden = keras.ops.relu(keras.layers.Dense(4)(inputs)) + 2.0
    outputs = keras.layers.Dense(1)(keras.layers.LayerNormalization()(hidden))
    rate = keras.optimizers.schedules.CosineDecay(0.01, 100)
    return keras.Model(inputs, outputs), keras.optimizers.AdamW(rate)


KINDS = (sequential, functional)


def trained(kind, epochs, fit=keras.Model.fit, **more):
    """Train a new model, as a script does that is started once more."""
    directory = ROOT / kind.__name__
    directory.mkdir(exist_ok=True)
    model, optimizer = kind()
    model.compile(optimizer, "mse", metrics=["mae"], run_eagerly=True)
    callbacks = [
        keras.callbacks.EarlyStopping(patience=9, restore_best_weights=True),
        keras.callbacks.CSVLogger(os.fspath(directory / "log.csv")),
        keras.callbacks.ModelCheckpoint(
            os.fspath(directory / "best.weights.h5"), save_weights_only=True
        ),
    ]
    arrays = {"x": X, "y": Y, "batch_size": 4, "validation_data": (X, Y)}
    fit(model, **arrays, epochs=epochs, callbacks=callbacks, **more)


def libraries():
    """Names of what is imported, less Python's own and what TensorFlow generates."""
    found = {name.partition(".")[0] for name in sys.modules}
    found -= set(sys.stdlib_module_names)
    return {name for name in found if not name.startswith("__autograph_generated")}


def recorded():
    """What the newest checkpoints tell of their models, without automatic numbers."""
    runs = [max((ROOT / kind.__name__).glob("run/step-*/run.json")) for kind in KINDS]
    found = [json.loads(run.read_text(encoding="utf-8")) for run in runs]
    told = [run["fingerprint"] for run in found]
    return re.sub(r"_\d+", "", json.dumps(told))


for kind in KINDS:
    trained(kind, 1)
keras_alone = libraries()

import resilient  # noqa: E402  # adds what it adds


def saved(epochs):
    """Train both up to so many epochs, from where their checkpoints are."""
    for kind in KINDS:
        run = ROOT / kind.__name__ / "run"
        trained(kind, epochs, resilient.fit, checkpoint_dir=run, save_freq=2)


saved(2)
saved(3)  # resumed
added, without = libraries() - keras_alone, recorded()
sequential()[0].get_config()
by_keras = "tensorflow" in sys.modules
with warnings.catch_warnings(category=resilient.NotExactWarning, action="error"):
    saved(4)
report = {"added": sorted(added), "same": recorded() == without, "later": by_keras}
print(json.dumps(report))
