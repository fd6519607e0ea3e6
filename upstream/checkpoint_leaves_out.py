"""``tf.train.Checkpoint(model=, optimizer=)`` leaves out Keras's seeds and metrics.

``assert_consumed()`` still passes: it only knows what was saved.

Backends: tensorflow
"""

import os
import sys
import tempfile

import keras
import numpy as np
import tensorflow as tf


def make_model():
    layers = [keras.Input((4,)), keras.layers.Dropout(0.5, seed=1)]
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    return model


def state(model):
    seeds = model.layers[0].seed_generator.state
    return [variable.numpy() for variable in (seeds, *model.metrics_variables)]


x, y = np.ones((4, 4), "float32"), np.zeros((4, 1), "float32")
trained, model = make_model(), make_model()
trained.fit(x, y, verbose=0)
model.train_on_batch(x * 0, y)  # creates all variables
with tempfile.TemporaryDirectory() as directory:
    path = os.path.join(directory, "checkpoint")
    path = tf.train.Checkpoint(model=trained, optimizer=trained.optimizer).save(path)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    checkpoint.restore(path).assert_consumed()

same = [np.array_equal(a, b) for a, b in zip(state(model), state(trained), strict=True)]
if all(same):
    sys.exit("gone: seeds and metrics were restored")
print(f"shown: {sum(same)} of {len(same)} seeds and metrics were restored")
