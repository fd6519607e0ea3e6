"""Keras's ``set_state_tree`` restores nothing, in silence, under other names.

Automatic names are counted through a process: the same model made a second time has
others, and what belongs to no name of the model is passed over.

Backends: tensorflow, jax, torch
"""

import sys

import keras
import numpy as np


def make_model():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    return model


saved, model = make_model(), make_model()
before = model.get_weights()[0]
try:
    model.set_state_tree(saved.get_state_tree())
except Exception as error:
    sys.exit(f"gone: {error}")

if not np.array_equal(model.get_weights()[0], before):
    sys.exit("gone: the weights were restored")
print("shown: set_state_tree of the same model's state changed nothing, without a word")
