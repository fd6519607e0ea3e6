"""KerasTuner: three trials of a random search, then the best model goes on."""

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


tuner = keras_tuner.RandomSearch(
    build,
    objective="val_loss",
    max_trials=3,
    seed=7,
    directory=f"{sys.argv[1]}/tuner",
    project_name="search",
    overwrite=True,  # or a restarted search would skip the trials that it has done
)
tuner.search(
    *(x[:192], y[:192]),
    epochs=3,
    batch_size=16,
    validation_data=(x[192:], y[192:]),
    verbose=0,
)
best = tuner.get_best_hyperparameters()[0]
scores = sorted(trial.score for trial in tuner.oracle.trials.values())
model = tuner.hypermodel.build(best)
history = model.fit(x, y, epochs=3, batch_size=16, verbose=0)
show(model, {"best": best.values, "scores": scores, **history.history})
