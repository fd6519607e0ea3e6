"""Which settings of a layer make another function of it."""

import keras
import pytest

from resilient.state.comparison import SETTINGS, compare, is_training_only
from resilient.state.fingerprint import fingerprint

pytestmark = pytest.mark.usefixtures("seeded")

FUNCTION = {
    "activation": lambda x: keras.layers.Conv1D(2, 2, activation=x),
    "padding": lambda x: keras.layers.Conv1D(2, 2, padding=x),
    "dilation_rate": lambda x: keras.layers.Conv1D(2, 2, dilation_rate=x),
    "strides": lambda x: keras.layers.MaxPooling1D(2, strides=x),
    "pool_size": lambda x: keras.layers.AveragePooling1D(x, strides=1),
    "data_format": lambda x: keras.layers.MaxPooling1D(data_format=x),
    "epsilon": lambda x: keras.layers.LayerNormalization(epsilon=x),
    "max_value": lambda x: keras.layers.ReLU(max_value=x),
    "scale": lambda x: keras.layers.Rescaling(scale=x),
}
VALUES = {
    "activation": ("relu", "tanh"),
    "padding": ("same", "causal"),
    "data_format": ("channels_last", "channels_first"),
    "epsilon": (1e-3, 1e-5),
    "max_value": (None, 6.0),
    "scale": (0.5, 0.25),
}
TRAINING = {
    "rate": keras.layers.SpatialDropout1D,
    "stddev": keras.layers.GaussianNoise,
    "momentum": lambda x: keras.layers.BatchNormalization(momentum=x),
    "recurrent_dropout": lambda x: keras.layers.GRU(2, recurrent_dropout=x),
    "l2": lambda x: keras.layers.ActivityRegularization(l2=x),
}


def facts(layer, adapter):
    net = keras.Sequential([keras.Input((8, 4)), layer])
    net.compile("sgd", "mse")
    arguments = {"initial_epoch": 0, "steps_per_epoch": None}
    return fingerprint(net, {}, arguments, adapter)


@pytest.mark.parametrize("setting", FUNCTION)
def test_another_function_is_another_model(setting, adapter):
    pair = [facts(FUNCTION[setting](x), adapter) for x in VALUES.get(setting, (1, 2))]
    (found,) = compare(*pair)
    assert found.of == "config"
    assert f").{setting}: the checkpoint has " in found.line


@pytest.mark.parametrize("setting", TRAINING)
def test_what_only_trains_is_a_setting(setting, adapter):
    pair = [facts(TRAINING[setting](x), adapter) for x in (0.25, 0.5)]
    found = compare(*pair)
    assert {each.of for each in found} == {SETTINGS}
    assert f").{setting}: the checkpoint has 0.25, this run has" in found[0].line


def test_every_setting_of_augmentation_is_one_of_training():
    assert is_training_only("RandomFlip", "mode")
    assert is_training_only("RandomRotation", "fill_mode")
    # It resizes what it is given, in inference too.
    assert not is_training_only("RandomCrop", "height")


def test_what_another_version_of_keras_does_not_know_is_no_difference(adapter):
    old, new = (facts(keras.layers.ReLU(), adapter) for _ in range(2))
    new["settings"]["layer 0 (ReLU).new_one"] = 3
    assert [each.of for each in compare(old, new)] == ["config"]
    old["settings"]["keras"] = "3.0.0"
    assert {each.of for each in compare(old, new)} == {SETTINGS}


def test_code_is_compared_if_one_version_of_python_compiled_it(adapter):
    functions = (lambda x: x * 2.0, lambda x: x + 1.0)
    old, new = (facts(keras.layers.Lambda(each), adapter) for each in functions)
    (found,) = compare(old, new)
    assert found.line.startswith("layer 1 (Lambda).function: the checkpoint has ")
    old["settings"]["python"] = "3.9.1"
    assert [each.of for each in compare(old, new)] == [SETTINGS]
