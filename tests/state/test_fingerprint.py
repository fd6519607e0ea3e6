"""What a run is, as it is compared with a checkpoint's."""

import keras
import pytest

from resilient.state.comparison import differences
from resilient.state.fingerprint import fingerprint

pytestmark = pytest.mark.usefixtures("seeded")


def of(layer, adapter, optimizer="sgd"):
    net = keras.Sequential([keras.Input((4, 2)), layer])
    net.compile(optimizer, "mse")
    arguments = {"initial_epoch": 0, "steps_per_epoch": None}
    return fingerprint(net, {}, arguments, adapter)


def test_settings_that_are_lists_are_compared(adapter):
    one, same, other = (
        of(keras.layers.MaxPooling1D(2, strides=strides), adapter)["settings"]
        for strides in (1, 1, 2)
    )
    assert differences(one, same) == []
    (line,) = differences(one, other)
    assert line.endswith(
        "(MaxPooling1D).strides: the checkpoint has [1], this run has [2]"
    )


def test_a_model_inside_may_be_called_otherwise(adapter):
    """Keras numbers the layers of a process: a second model has other names."""

    def inner():
        x = keras.Input((4, 2))
        return keras.Model(x, keras.layers.Dense(2)(x))

    one, other = (of(inner(), adapter) for _ in range(2))
    for kind in ("identity", "settings"):
        assert differences(one[kind], other[kind]) == []


def test_other_outputs_of_a_model_inside_are_told(adapter):
    def inner(*order):
        x = keras.Input((4, 2))
        found = [keras.layers.Dense(2)(x)]
        found.append(keras.layers.Dense(2)(found[0]))
        return keras.Model(x, [found[place] for place in order])

    def outer(*order):
        x = keras.Input((4, 2))
        return keras.Model(x, inner(*order)(x)[0])

    def identity(*order):
        net = outer(*order)
        net.compile("sgd", "mse")
        arguments = {"initial_epoch": 0, "steps_per_epoch": None}
        return fingerprint(net, {}, arguments, adapter)["identity"]

    assert differences(identity(0, 1), identity(0, 1)) == []
    (line,) = differences(identity(0, 1), identity(1, 0))
    assert line.startswith(
        "connections of layer 1 outputs: the checkpoint has [['0', '0."
    )


def test_an_optimizer_that_another_wraps_is_compared(adapter):
    one, other = (
        of(keras.layers.Dense(1), adapter, keras.optimizers.LossScaleOptimizer(inner))
        for inner in (keras.optimizers.SGD(), keras.optimizers.Adam())
    )
    (line,) = differences(one["identity"], other["identity"])
    assert line == (
        "optimizer: the checkpoint has ['LossScaleOptimizer', 'SGD'], "
        "this run has ['LossScaleOptimizer', 'Adam']"
    )
