"""Off the CPU, Keras's JAX trainer draws a batch before it trains the one before."""

import keras
import numpy as np
import pytest
from support import fitting
from support.fitting import Interrupt

from resilient import keras_internals

pytestmark = [
    pytest.mark.waits,
    pytest.mark.sources,
    pytest.mark.skipif(
        keras_internals.BACKEND != "jax", reason="only JAX's trainer looks ahead so"
    ),
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed"),
    pytest.mark.filterwarnings("ignore:Your input ran out of data"),
]


class Augmented(keras.utils.PyDataset):
    """Draws from NumPy's global generator, and counts."""

    def __init__(self):
        super().__init__()
        self.made = 0

    @property
    def num_batches(self):
        return fitting.STEPS

    def __getitem__(self, index):
        self.made += 1
        x, y = (part[index * 4 : index * 4 + 4] for part in fitting.data())
        return x + np.random.normal(size=x.shape).astype("float32"), y


def generator():
    while True:
        x, y = fitting.data(4)
        yield x + np.random.normal(size=x.shape).astype("float32"), y


class Counting:
    """An iterable of the user's own."""

    def __init__(self):
        self.next = 0

    def __iter__(self):
        while self.next < fitting.STEPS:
            batch = fitting.data(4, seed=self.next)
            self.next += 1
            yield batch
        self.next = 0

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


@pytest.fixture
def ahead(monkeypatch):
    """As off the CPU. Before Keras 3.14 it looks ahead on the CPU, too."""
    iterator = keras_internals.backend_epoch_iterator()
    if not hasattr(iterator, "_one_batch_ahead_iterator"):
        yield
        return
    looked = []

    def get_iterator(self):
        looked.append(self)
        batches = self.data_adapter.get_jax_iterator()
        return self._one_batch_ahead_iterator(batches)

    monkeypatch.setattr(iterator, "_get_iterator", get_iterator)
    monkeypatch.setattr(keras_internals, "looks_ahead", lambda: True)
    yield looked
    assert looked


@pytest.mark.parametrize("steps_per_epoch", [None, 4])
@pytest.mark.parametrize("make", [Augmented, generator, Counting])
def test_what_was_drawn_ahead_is_in_the_checkpoint(
    tmp_path, ahead, make, steps_per_epoch
):
    if make is generator and steps_per_epoch is None:
        steps_per_epoch = 5
    given = {"y": None, "batch_size": None, "steps_per_epoch": steps_per_epoch}
    keras.utils.set_random_seed(7)
    expected = fitting.model()
    alone = fitting.fit(expected, tmp_path / "alone", x=make(), **given).history
    for epoch, batch in ((0, 2), (1, 1), (2, 0)):
        directory = tmp_path / f"{epoch}-{batch}"
        fitting.interrupted(directory, epoch, batch, save_freq=1, x=make(), **given)
        fitting.other_seed()
        net = fitting.model(seed=99)
        callbacks = [Interrupt()]
        history = fitting.fit(net, directory, x=make(), callbacks=callbacks, **given)
        assert history.history == alone
        fitting.assert_equal(expected, net)
