"""Fits on small tf.data pipelines, interrupted and resumed in one process."""

import contextlib

import keras
import numpy as np

# Torch has to be imported before TensorFlow.
if keras.backend.backend() == "torch":
    import torch  # noqa: F401

import pytest
import tensorflow as tf

import resilient

TENSORFLOW = keras.backend.backend() == "tensorflow"

# Marks of a module that trains on pipelines.
MARKS = [
    pytest.mark.waits,
    pytest.mark.sources,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't"),
    pytest.mark.filterwarnings("ignore:Seed .* from outer graph"),
    pytest.mark.filterwarnings("ignore:Your input ran out of data"),
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed"),
]


@pytest.fixture(autouse=True)
def no_global_seed():
    """Pipelines draw their seeds from nowhere; afterwards as before."""
    tf.random.set_seed(None)
    yield
    tf.random.set_seed(None)


class Interrupted(Exception):
    """What interrupts a fit here."""


class Recording(keras.callbacks.Callback):
    """Keeps losses of batches; raises at one."""

    def __init__(self, stop_at=None):
        super().__init__()
        self.losses, self._stop_at = [], stop_at

    def state_dict(self):
        return {"losses": list(self.losses)}

    def load_state_dict(self, state):
        self.losses = list(state["losses"])

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(float(logs["loss"]))
        if len(self.losses) == self._stop_at:
            raise Interrupted


def rows(scale=1.0):
    random = np.random.RandomState(0)
    x = random.rand(40, 4).astype("float32") * np.float32(scale)
    return tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True)))


def fit(dataset, directory, stop_at=None, **options):
    """The loss after each batch; the weights are the same in each run."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.set_weights([np.full((4, 1), 0.3, "float32"), np.ones(1, "float32")])
    settings = {"jit_compile": False} if TENSORFLOW else {}
    model.compile(keras.optimizers.SGD(0.05), "mse", **settings)
    recording = Recording(stop_at)
    epochs = options.pop("epochs", 3)
    arguments = {"epochs": epochs, "verbose": 0, "callbacks": [recording]}
    if directory is None:
        model.fit(dataset, **arguments)
    else:
        arguments |= {"checkpoint_dir": directory, "save_freq": 1, "keep": 100}
        with contextlib.suppress(Interrupted):
            resilient.fit(model, dataset, **arguments, **options)
    return recording.losses
