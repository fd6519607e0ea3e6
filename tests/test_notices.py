"""What a resume will not reproduce is said while training, once and by name."""

import warnings

import fitting
import keras
import numpy as np
import pytest
from fitting import Do, Interrupt

from resilient import CheckpointMismatchError, NotExactWarning

pytestmark = [
    pytest.mark.usefixtures("seeded"),
    # Keras on NumPy 2 (keras.Variable.__array__).
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't"),
]


def test_a_layers_setting_that_a_callback_changes_is_named_once(tmp_path):
    """It is no variable: a resumed process starts with the script's value."""
    net = fitting.model()
    change = Do(lambda: setattr(net.layers[1], "rate", 0.1), epoch=0)
    with pytest.warns(NotExactWarning, match=r"layer \d \(Dropout\)\.rate") as caught:
        fitting.fit(net, tmp_path, callbacks=[change], save_freq=2)
    assert [w.category for w in caught].count(NotExactWarning) == 1


class Counting(keras.Sequential):
    """Counts steps where no checkpoint sees it."""

    def __init__(self, layers):
        super().__init__(layers)
        self.counted = 0

    def train_step(self, *data):
        self.counted += 1
        return super().train_step(*data)


def test_a_counter_in_a_train_step_is_named(tmp_path):
    net = fitting.model(cls=Counting)
    with pytest.warns(NotExactWarning, match=r"Counting\.counted"):
        fitting.fit(net, tmp_path, save_freq=2)


def test_a_model_that_trains_plainly_causes_no_warning(tmp_path):
    net = fitting.model(metrics=["mae"])
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotExactWarning)
        fitting.fit(net, tmp_path, save_freq=1, validation_split=0.3)


@pytest.mark.skipif(
    keras.backend.backend() == "jax",
    reason="Keras's own fit fails there when layers are frozen meanwhile",
)
def test_freezing_in_mid_training_is_said_before_it_is_refused(tmp_path):
    """A resume would find other groups of variables than the script makes."""
    net = fitting.model()
    freeze = Do(lambda: setattr(net.layers[0], "trainable", False), epoch=0, batch=None)
    with pytest.warns(NotExactWarning, match="frozen, unfrozen or compiled"):
        fitting.interrupted(tmp_path, 1, 4, net=net, callbacks=[freeze], save_freq=1)
    again = [Interrupt(), Do(lambda: None)]
    with pytest.raises(CheckpointMismatchError, match="freezes"):
        fitting.fit(fitting.model(), tmp_path, callbacks=again, save_freq=1)


class WeightedError(keras.losses.Loss):
    """A loss with a variable of its own, which each step changes."""

    def __init__(self):
        super().__init__()
        self.weight = keras.Variable(1.0, trainable=False)

    def call(self, y_true, y_pred):
        return self.weight.value * keras.ops.mean((y_true - y_pred) ** 2, axis=-1)


def test_a_variable_of_a_loss_object_is_restored(tmp_path):
    def weighing(loss):
        return Do(lambda: loss.weight.assign(3.0), epoch=0)

    first = WeightedError()
    fitting.interrupted(
        tmp_path, 1, 2, net=fitting.model(loss=first), callbacks=[weighing(first)]
    )
    again = WeightedError()
    callbacks = [Interrupt(), weighing(again)]
    net = fitting.model(loss=again)
    fitting.fit(net, tmp_path, callbacks=callbacks, save_freq=4)
    assert np.float32(again.weight.value) == 3.0


def functional(factor, *, twice=False):
    """A functional model whose layers are the same, whatever is asked for."""
    x = keras.Input((3,))
    a, b = keras.layers.Dense(2)(x), keras.layers.Dense(2)(x)
    added = keras.layers.Add()([a, a if twice else b]) * factor
    both = keras.layers.Concatenate()([added, b])
    net = keras.Model(x, keras.layers.Dense(1)(both))
    net.compile("adam", "mse", run_eagerly=True)
    return net


@pytest.mark.parametrize(
    ("changed", "where"),
    [
        ({"factor": 5.0}, "Multiply"),
        ({"factor": 2.0, "twice": True}, "Add"),
    ],
)
def test_a_model_that_is_wired_otherwise_is_refused(tmp_path, changed, where):
    """Equal layers and shapes, and yet another function."""
    fitting.interrupted(tmp_path, net=functional(2.0))
    with pytest.raises(CheckpointMismatchError, match=rf"inputs of layer \d \({where}"):
        fitting.fit(functional(**changed), tmp_path, callbacks=[Interrupt()])
    keras.layers.Dense(1)  # automatic names go on counting, and do not matter
    fitting.fit(functional(2.0), tmp_path, callbacks=[Interrupt()])
