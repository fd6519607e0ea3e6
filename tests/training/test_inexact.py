"""What a resume will not reproduce is said while training, once and by name."""

import warnings

import keras
import numpy as np
import pytest
from support import fitting
from support.fitting import Do, Interrupt

from resilient import CheckpointMismatchError, NotExactWarning

pytestmark = [
    pytest.mark.usefixtures("seeded"),
    # Keras on NumPy 2 (keras.Variable.__array__).
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't"),
]


class Counting(keras.Sequential):
    """Counts steps where no checkpoint sees it."""

    def __init__(self, layers):
        super().__init__(layers)
        self.counted = 0

    def train_step(self, *data):
        self.counted += 1
        return super().train_step(*data)


class Calls(keras.metrics.Mean):
    """Counts its updates in an attribute."""

    def __init__(self, **given):
        super().__init__(**given)
        self.counted = 0

    def update_state(self, *values, **given):
        self.counted += 1
        super().update_state(float(self.counted))


@pytest.mark.skipif(
    keras.backend.backend() == "torch", reason="Keras traces no steps there"
)
def test_a_counter_in_a_traced_step_is_named_once(tmp_path):
    """It counts traces; nobody knows what a resumed process would have it count."""
    how = {"run_eagerly": False, "jit_compile": False, "metrics": [Calls()]}
    net = fitting.model(cls=Counting, **how)
    with pytest.warns(NotExactWarning, match=r"Counting\.counted") as caught:
        fitting.fit(net, tmp_path, save_freq=2)
    (warning,) = (w for w in caught if w.category is NotExactWarning)
    assert "metrics[0].counted" in str(warning.message)


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="others keep no such state"
)
def test_random_operations_of_tensorflow_in_a_traced_step_are_named_once(tmp_path):
    import tensorflow as tf

    class Noise(keras.layers.Layer):
        def call(self, inputs):
            return inputs + tf.random.normal(tf.shape(inputs))

    settings = {"run_eagerly": False, "jit_compile": False}
    net = fitting.model(of=lambda: [*fitting.layers(), Noise()], **settings)
    with pytest.warns(NotExactWarning, match="RandomStandardNormal") as caught:
        fitting.fit(net, tmp_path, save_freq=2)
    assert [w.category for w in caught].count(NotExactWarning) == 1


def test_a_counter_in_a_step_that_runs_as_python_goes_on(tmp_path):
    """And so does a setting that a callback changes a little at each batch's end."""

    def counting(seed=5):
        net = fitting.model(cls=Counting, seed=seed, metrics=[[Calls(), "mae"]])
        net.layers[1].rate = 0.5
        fade = keras.callbacks.LambdaCallback(
            on_train_batch_begin=lambda batch, logs: setattr(
                net.layers[1], "rate", net.layers[1].rate * 0.9
            )
        )
        return net, fade

    expected, fade = counting()
    history = expected.fit(**fitting.arguments(callbacks=[Interrupt(), fade]))
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotExactWarning)
        first, fade = counting()
        fitting.interrupted(tmp_path, net=first, callbacks=[fade])
        resumed, fade = counting(seed=99)
        given = {"callbacks": [Interrupt(), fade], "save_freq": 4}
        assert fitting.fit(resumed, tmp_path, **given).history == history.history
    assert resumed.counted == expected.counted == 3 * fitting.STEPS
    assert resumed.layers[1].rate == expected.layers[1].rate
    fitting.assert_equal(expected, resumed)


@pytest.mark.spread
def test_a_model_that_trains_plainly_causes_no_warning(tmp_path):
    net = fitting.model(metrics=["mae"])
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotExactWarning)
        fitting.fit(net, tmp_path, save_freq=1, validation_split=0.3)


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


@pytest.mark.spread
@pytest.mark.parametrize(
    ("changed", "where"),
    [
        ({"factor": 5.0}, r"connections of operation \d \(Multiply\): the"),
        (
            {"factor": 2.0, "twice": True},
            r"layer \d: the checkpoint has None, this run has 'Add'",
        ),
    ],
)
def test_a_model_that_is_wired_otherwise_is_refused(tmp_path, changed, where):
    """Equal layers and shapes, and yet another function."""
    fitting.interrupted(tmp_path, net=functional(2.0))
    with pytest.raises(CheckpointMismatchError, match=where):
        fitting.fit(functional(**changed), tmp_path, callbacks=[Interrupt()])
    keras.layers.Dense(1)  # automatic names go on counting, and do not matter
    fitting.fit(functional(2.0), tmp_path, callbacks=[Interrupt()])
