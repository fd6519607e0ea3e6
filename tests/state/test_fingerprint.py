"""What a run is, as it is compared with a checkpoint's."""

import keras
import pytest

from resilient.state.fingerprint import differences, fingerprint

pytestmark = pytest.mark.usefixtures("seeded")


def settings(layer, adapter):
    net = keras.Sequential([keras.Input((4, 2)), layer])
    net.compile("sgd", "mse")
    arguments = {"initial_epoch": 0, "steps_per_epoch": None}
    return fingerprint(net, {}, arguments, adapter)["settings"]


def test_settings_that_are_lists_are_compared(adapter):
    one, same, other = (
        settings(keras.layers.MaxPooling1D(2, strides=strides), adapter)
        for strides in (1, 1, 2)
    )
    assert differences(one, same) == []
    (line,) = differences(one, other)
    assert line.endswith(
        "(MaxPooling1D) strides: the checkpoint has [1], this run has [2]"
    )
