"""What no checkpoint can hold is named when it is first saved, at the caller's line."""

import warnings

import keras
import pytest
from support import fitting

from resilient import NotExactWarning

BACKEND = keras.backend.backend()

pytestmark = [
    pytest.mark.waits,
    pytest.mark.usefixtures("seeded"),
    # Keras on NumPy 2 (keras.Variable.__array__).
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't"),
]

KNOB = keras.Variable(0.0, trainable=False)


class Turns(keras.callbacks.Callback):
    """Changes a variable that a loss reads and no model has."""

    def on_epoch_begin(self, epoch, logs=None):
        KNOB.assign(1.0 + epoch)


def turned(y, predicted):
    return keras.ops.mean(keras.ops.square(y - predicted)) + KNOB


class Evaluates(keras.callbacks.Callback):
    """Evaluates another compiled model after each epoch."""

    def __init__(self, net, before):
        super().__init__()
        self.net = net
        if before:
            self.on_epoch_end(0)

    def on_epoch_end(self, epoch, logs=None):
        x, y = fitting.data()
        self.net.evaluate(x, y, verbose=0)


class Clones(keras.callbacks.Callback):
    """Makes a model in the middle of training."""

    clone = None

    def on_epoch_end(self, epoch, logs=None):
        self.clone = self.clone or keras.models.clone_model(self.model)


def said(directory, *callbacks, **compiling):
    """The texts of all warnings of a run of three epochs."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NotExactWarning)
        net = fitting.model(**compiling)
        fitting.fit(net, directory, callbacks=[*callbacks], save_freq="epoch")
    return [w for w in caught if w.category is NotExactWarning]


@pytest.mark.skipif(BACKEND != "jax", reason="others read it at each step")
def test_a_variable_outside_the_model_that_a_traced_step_reads(tmp_path):
    traced = {"run_eagerly": False, "jit_compile": False}
    (warning,) = said(tmp_path, Turns(), loss=turned, **traced)
    assert "a resume resets them" in str(warning.message)
    assert "KNOB" in str(warning.message)


class Weighted(keras.losses.Loss):
    def __init__(self):
        super().__init__()
        self.by = {"all": [keras.Variable(1.0, trainable=False)]}

    def call(self, y_true, y_pred):
        return keras.ops.square(y_true - y_pred) * self.by["all"][0]


class Weighs(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.loss.by["all"][0].assign(0.5)


def test_a_variable_of_a_loss(tmp_path):
    """Saved with the model; JAX's traced step has baked in what it was at first."""
    traced = {"run_eagerly": False, "jit_compile": False}
    found = said(tmp_path, Weighs(), loss=Weighted(), **traced)
    assert ["loss.by['all'][0]" in str(w.message) for w in found] == [True] * (
        BACKEND == "jax"
    )


@pytest.mark.skipif(BACKEND != "torch", reason="others draw nothing for that")
@pytest.mark.parametrize("before", [False, True])
def test_a_model_that_is_first_called_in_training(tmp_path, before):
    found = said(tmp_path, Evaluates(fitting.model(), before))
    assert len(found) == (not before)
    assert all("Evaluates.net.test_function" in str(w.message) for w in found)


def test_a_model_that_is_made_in_training(tmp_path):
    (warning,) = said(tmp_path, Clones())
    assert "Clones.clone (keras." in str(warning.message)
    assert warning.filename == fitting.__file__


class Single:
    """Only one is ever made, in the first batch."""

    made = None

    def __new__(cls):
        cls.made = cls.made or super().__new__(cls)
        return cls.made


class Makes(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        Single().last = batch


def test_an_object_that_the_first_batch_makes(tmp_path):
    (warning,) = said(tmp_path, Makes())
    assert "Single.made" in str(warning.message)
