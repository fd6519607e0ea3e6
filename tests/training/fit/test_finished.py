"""A directory whose run an earlier fit of this process has finished."""

import keras
import numpy as np
import pytest
from support import fitting

import resilient

pytestmark = [
    pytest.mark.spread,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't"),
]

SAID = "Nothing left to train: an earlier fit in this process finished the run in"


def rate(value):
    return fitting.model(optimizer=keras.optimizers.Adam(value))


def test_a_sweep_in_one_directory_is_refused(tmp_path):
    fitting.fit(rate(1e-2), tmp_path)
    before, net = fitting.steps(tmp_path), rate(1e-3)
    weights = net.get_weights()
    with pytest.raises(resilient.CheckpointMismatchError) as error:
        fitting.fit(net, tmp_path)
    assert "An earlier fit in this process finished the run" in str(error.value)
    assert "learning rate 0.01 then, 0.001 now" in str(error.value)
    assert "resilient.enabled" in str(error.value)
    for old, new in zip(weights, net.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    assert fitting.steps(tmp_path) == before
    history = fitting.fit(net, tmp_path, resume="must")
    assert history.epoch == [0, 1, 2]


def test_fits_of_one_epoch_in_a_loop_are_told_what_they_get(tmp_path, caplog):
    net = fitting.model()
    for _ in range(3):
        fitting.fit(net, tmp_path, epochs=1)
    assert caplog.text.count(SAID) == 2
    assert "resilient.enabled" in caplog.text


def test_more_epochs_and_fits_that_are_enabled_are_not_meant(tmp_path, caplog):
    net = fitting.model()
    fitting.fit(net, tmp_path / "own", epochs=1)
    assert fitting.fit(net, tmp_path / "own", epochs=2).epoch == [0, 1]
    for _ in range(2):
        net = fitting.model()
        with resilient.enabled(tmp_path / "runs"):
            net.fit(**fitting.arguments(epochs=1))
    assert SAID not in caplog.text
