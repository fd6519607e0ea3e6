"""KerasTuner: a search, its best model, and a fit of another one like it.

    tuner.py DIRECTORY random | overwrite | hyperband | bayes

It does not tell KerasTuner to begin again, unless that is what is asked for. The first
search has no seed, and draws another one in each attempt.
"""

import os
import random
import sys

import keras
import keras_tuner
import numpy as np
from digest import show

keras.utils.set_random_seed(7)
rng = np.random.default_rng(7)
x = rng.normal(size=(256, 8)).astype("float32")
y = (x[:, :1] * x[:, 1:2] > 0).astype("float32")


def build(hp):
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(hp.Int("units", 4, 32, step=4), activation="relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    rate = hp.Float("rate", 1e-3, 1e-1, sampling="log")
    model.compile(
        optimizer=keras.optimizers.Adam(rate),
        loss="binary_crossentropy",
        metrics=["accuracy"],
    )
    return model


def make_tuner(kind):
    given = {
        "objective": "val_loss",
        "directory": f"{sys.argv[1]}/tuner",
        "project_name": "search",
    }
    if kind == "hyperband":
        return keras_tuner.Hyperband(build, seed=7, max_epochs=4, factor=2, **given)
    if kind == "bayes":
        return keras_tuner.BayesianOptimization(
            build, seed=7, max_trials=4, num_initial_points=2, **given
        )
    others = {"seed": 7, "overwrite": True} if kind == "overwrite" else {}
    before = random.getstate()
    random.seed(os.environ.get("ATTEMPT", "0"))
    tuner = keras_tuner.RandomSearch(build, max_trials=3, **given, **others)
    random.setstate(before)
    return tuner


tuner = make_tuner(sys.argv[2])
tuner.search(
    *(x[:192], y[:192]),
    epochs=3,
    batch_size=16,
    validation_data=(x[192:], y[192:]),
    verbose=0,
)
trials = {
    name: [trial.hyperparameters.values, trial.score, trial.best_step]
    for name, trial in tuner.oracle.trials.items()
}
best = tuner.get_best_models()[0]
weights = [weight.tolist() for weight in best.get_weights()]
model = tuner.hypermodel.build(tuner.get_best_hyperparameters()[0])
history = model.fit(x, y, epochs=3, batch_size=16, verbose=0)
show(model, {"trials": trials, "best": weights, **history.history})
