"""A program is told which checkpoint its training resumed from."""

import threading

import keras
import numpy as np
import pytest
from support import fitting

import resilient
from resilient.errors import ResilientError

pytestmark = [pytest.mark.usefixtures("seeded"), pytest.mark.waits]


class Asks(keras.callbacks.Callback):
    """Asks when training begins, and at the first batch in another thread."""

    def __init__(self):
        super().__init__()
        self.told = []

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass

    def on_train_begin(self, logs=None):
        self.told.append(resilient.resumed_from())

    def on_train_batch_begin(self, batch, logs=None):
        if len(self.told) == 1:
            ask = threading.Thread(
                target=lambda: self.told.append(resilient.resumed_from())
            )
            ask.start()
            ask.join()


@pytest.mark.spread
def test_a_fit_tells_where_its_checkpoint_is(tmp_path):
    def attempt(interrupt):
        asks = Asks()
        with pytest.raises(fitting.Interrupted):
            fitting.fit(
                fitting.model(), tmp_path, callbacks=[asks, interrupt], save_freq=2
            )
        return asks.told

    assert attempt(fitting.Interrupt(1, 2)) == [None, None]
    assert attempt(fitting.Interrupt(2, 1)) == [(8, 1, 2), (8, 1, 2)]
    (told, _) = attempt(fitting.Interrupt(2, 4))
    assert (told.step, told.epoch, told.batch) == (12, 2, 0)


@pytest.mark.spread
def test_a_loop_tells_where_its_checkpoint_is(tmp_path):
    def attempt(until):
        rng = np.random.default_rng(0)
        run = resilient.Run(tmp_path, save_freq=3, verbose=0, rng=rng)
        for _, step, _ in run.loop([(n,) for n in range(10)], epochs=2):
            if step == until:
                return resilient.resumed_from()
        raise AssertionError

    assert attempt(8) is None
    assert attempt(17) == (6, 0, 6)


def test_outside_of_a_training_there_is_none():
    with pytest.raises(ResilientError, match="only while a fit or a loop is running"):
        resilient.resumed_from()
