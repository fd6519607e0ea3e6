"""A search begins again with the trials that it had; shown with a small KerasTuner.

``tests/libraries`` kills programs of the real one.
"""

import shutil
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import support
from support import fitting
from support.fitting import Interrupt

import resilient
from resilient import CheckpointMismatchError
from resilient.training.enabled import calls

sys.path.insert(0, str(Path(support.__file__).with_name("like_keras_tuner")))

pytestmark = [
    pytest.mark.spread,
    pytest.mark.usefixtures("seeded"),
    # Keras on NumPy 2 (keras.Variable.__array__).
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't"),
]


class Killed(BaseException):
    """Ends a search as a kill does, but for what is in memory."""


class Kill(Interrupt):
    """In a batch of all fits of a program together."""

    def __init__(self, at=None):
        super().__init__()
        self.left = at

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        if len(self._seen) == self.left:
            raise Killed


def net_of(rate):
    net = keras.Sequential(fitting.layers())
    net.compile(keras.optimizers.Adam(rate), "mse", run_eagerly=True)
    return net


def enabled(directory, **options):
    """A block of ``enabled``, as of a process of its own."""
    calls.ended.clear()
    return resilient.enabled(directory / "runs", save_freq=2, **options)


def searched(where, kill=None, overwrite=False, net=net_of, **oracle):
    """Make a tuner and let it search; the tuner, and the batches trained."""
    from keras_tuner import engine

    asked = engine.oracle.Oracle(**oracle)
    tuner = engine.base_tuner.BaseTuner(asked, net, where, "p", overwrite=overwrite)
    seen = Kill(kill)
    tuner.search(**fitting.arguments(epochs=2, callbacks=[seen]))
    return tuner, len(seen.seen)


def ends(tuner):
    return tuner.oracle.trials, tuner.best().tolist()


STEPS = 2 * fitting.STEPS


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("kill", [3, STEPS + 3, None])
def test_a_search_ends_as_if_it_had_not_been_interrupted(tmp_path, kill, overwrite):
    """Also one that had finished; the weights of earlier trials are still there."""
    keras.utils.set_random_seed(7)
    expected, _ = searched(tmp_path / "alone")
    after = fitting.random_state()

    def program(kill=None):
        with enabled(tmp_path):
            return searched(tmp_path / "ours", kill, overwrite)

    keras.utils.set_random_seed(7)
    if kill is None:
        assert ends(program()[0]) == ends(expected)
    else:
        with pytest.raises(Killed):
            program(kill)
    fitting.other_seed()
    found, trained = program()
    assert ends(found) == ends(expected)
    assert trained <= (0 if kill is None else 3 * STEPS - kill + 2)
    assert fitting.random_state() == after


def test_a_second_tuner_that_reads_what_the_first_found(tmp_path):
    def program(kill=None):
        with enabled(tmp_path):
            first, _ = searched(tmp_path, seed=3)
            second, _ = searched(tmp_path, kill, seed=3, max_trials=5)
        return ends(first), ends(second)

    with pytest.raises(Killed):
        program(STEPS + 3)
    found = program()
    assert list(found[0][0].items()) == list(found[1][0].items())[:3]
    assert len(found[1][0]) == 5
    assert program() == found


def test_a_project_in_which_another_search_began(tmp_path):
    """Before any block, or in this one, whose weights a restart would need."""
    searched(tmp_path, max_trials=2)
    refused = pytest.raises(CheckpointMismatchError, match="Another KerasTuner search")
    with enabled(tmp_path), refused:
        searched(tmp_path)
    with enabled(tmp_path):
        searched(tmp_path, overwrite=True)
        with refused:
            searched(tmp_path, overwrite=True)
    shutil.rmtree(tmp_path / "p")
    with enabled(tmp_path), pytest.raises((CheckpointMismatchError, OSError)):
        searched(tmp_path)[0].best()  # fits that return at once write nothing


def test_errors_of_ours_end_the_search(tmp_path):
    with enabled(tmp_path):
        searched(tmp_path)

    def other(rate):
        return net_of(2 * rate)

    refused = pytest.raises(CheckpointMismatchError, match="settings of its model")
    with enabled(tmp_path), refused:
        searched(tmp_path, net=other)


def test_a_trial_that_diverges_has_failed(tmp_path):
    def diverging(rate):
        net = net_of(rate)
        if rate < 0.05:
            net.set_weights([np.full_like(each, np.nan) for each in net.get_weights()])
        return net

    with enabled(tmp_path, on_nan="stop"):
        tuner, _ = searched(tmp_path, net=diverging, seed=2, max_trials=6)
    assert tuner.failed == ["DivergedError"] * len(tuner.failed)
    assert 0 < len(tuner.failed) < len(tuner.oracle.trials) == 6
