"""Users' own iterables with ``state_dict`` and ``load_state_dict``."""

import contextlib
import threading

import keras
import numpy as np
import pytest
from support.fitting import (
    Interrupt,
    Interrupted,
    assert_equal,
    model,
    other_seed,
    random_state,
)

import resilient
from resilient import DataNotResumableError, NotSupportedError
from resilient.backends import get_backend
from resilient.data.iterable import IterableData
from resilient.data.source import SourceContext

pytestmark = [
    pytest.mark.spread,
    pytest.mark.waits,
    pytest.mark.sources,
    pytest.mark.filterwarnings("ignore:.*ran out of data"),
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't"),
]


class Rows:
    """Six batches an epoch, in another order each time, told in a mutable list."""

    def __init__(self, count=6):
        self.count = count
        self.order = list(range(count))
        self.left = list(self.order)
        self.begun = 0
        self.random = np.random.RandomState(0)

    def __iter__(self):
        self.begun += 1
        while self.left:
            number = self.left.pop(0)
            x = np.full((4, 3), number, "float32") + np.random.rand(4, 1)
            yield x.astype("float32"), x.sum(axis=1, keepdims=True)
        self.random.shuffle(self.order)
        self.left[:] = self.order

    def state_dict(self):
        return {"left": self.left, "order": self.order, "random": self.random}

    def load_state_dict(self, state):
        self.left, self.order = state["left"], state["order"]
        self.random = state["random"]


class Sized(Rows):
    def __len__(self):
        return self.count


def adapter(x, argument="x"):
    one = IterableData(x, settings=SourceContext(get_backend(), argument=argument))
    one.before_iterator()
    return one


def numbers(iterator, count=None):
    """What tells the batches apart."""
    chosen = iterator if count is None else (next(iterator) for _ in range(count))
    return [int(x[0, 0]) for x, _ in chosen]


def fit(directory, data, at=(), **given):
    net = model()
    arguments = {"epochs": 3, "verbose": 0, "save_freq": 1} | given
    callbacks = [Interrupt(*at)]
    try:
        resilient.fit(
            net, data, checkpoint_dir=directory, callbacks=callbacks, **arguments
        )
    except Interrupted:
        assert at
    return net


@pytest.mark.parametrize("cls", [Rows, Sized])
@pytest.mark.parametrize(
    "at",
    [
        (0, 0),
        pytest.param((1, 2), marks=pytest.mark.everywhere),
        (1, None),
        (2, 5),
    ],
)
def test_killed_and_resumed_is_uninterrupted(cls, at, tmp_path):
    whole = fit(tmp_path / "whole", cls())
    fit(tmp_path / "parts", cls(), at=at)
    other_seed()
    assert_equal(whole, fit(tmp_path / "parts", cls()))


def test_peeks_leave_no_trace():
    rows = Rows()
    before = random_state()
    one = IterableData(rows, settings=SourceContext(get_backend()))
    assert (rows.left, rows.order) == ([*range(6)], [*range(6)])
    assert random_state() == before
    building = iter(one.tracked)
    assert numbers(building, 3) == [0, 1, 0]
    assert rows.left == [*range(6)]
    one.before_iterator()
    assert numbers(iter(one.tracked), 2) == [0, 1]


def test_a_position_shares_nothing_with_the_iterable():
    """The iterable changes its lists in place; a position may be used twice."""
    one = adapter(Rows())
    numbers(iter(one.tracked), 2)
    position = one.position(2, held=True)
    list(one.tracked)
    for _ in range(2):
        other = adapter(Rows())
        other.resume(position)
        other.seek(position)
        assert numbers(iter(other.tracked), 4) == [2, 3, 4, 5]


def test_the_last_batch_brings_an_iterator_to_its_end():
    """What it does after its last yield is done, though Keras stops at the batch."""
    sized = Sized()
    one = adapter(sized)
    numbers(iter(one.tracked), 6)
    assert len(sized.left) == 6
    unsized = Rows()
    two = adapter(unsized)
    numbers(iter(two.tracked))
    numbers(iter(two.tracked), 6)
    assert len(unsized.left) == 6


class ItsOwnNextEpoch(Rows):
    """No iterator as Python has them, but a loop over it is an epoch."""

    given = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.given += 1
        if self.given % 7 == 0:
            raise StopIteration
        return (np.full((1, 1), self.given, np.float32),) * 2

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.given = state["given"]


def test_an_iterator_that_is_its_own_next_epoch_is_not_asked_again():
    one = adapter(ItsOwnNextEpoch())
    assert [len(list(iter(one.tracked))) for _ in range(3)] == [6, 6, 6]


@pytest.mark.parametrize("cls", [Rows, Sized])
def test_an_iterator_that_ended_ahead_of_training_stays_ended(cls):
    """The state is the next epoch's then, and nothing of that comes too early."""
    one = adapter(cls())
    iterator = iter(one.tracked)
    list(iterator)
    position = one.position(6, held=True)
    rows = cls()
    other = adapter(rows)
    other.resume(position)
    other.seek(position)
    assert list(other.tracked) == []
    assert numbers(iter(other.tracked)) == numbers(iter(one.tracked))


def test_an_epoch_longer_than_the_one_before_is_refused():
    class Growing(Rows):
        def __len__(self):
            return 4

    with pytest.raises(DataNotResumableError, match="more batches than"):
        numbers(iter(adapter(Growing()).tracked))


class Refusing(Rows):
    def state_dict(self):
        return {"lock": threading.Lock()}


def test_a_state_that_cannot_be_kept_is_refused_at_once(tmp_path):
    with pytest.raises(NotSupportedError, match=r"state_dict\(\) of `x`") as found:
        fit(tmp_path, Refusing())
    assert "(Refusing)" in str(found.value)
    assert "state['lock'] cannot be saved" in str(found.value)
    assert "numpy arrays" in str(found.value)


def test_a_state_that_is_only_later_no_longer_to_be_kept(tmp_path):
    class Later(Rows):
        def state_dict(self):
            state = super().state_dict()
            return state if len(self.left) > 3 else {**state, "f": lambda: None}

    with pytest.raises(NotSupportedError, match=r"\(.*Later\) cannot be saved"):
        fit(tmp_path, Later())


def test_other_arguments_are_checked_as_for_a_generator(tmp_path):
    with pytest.raises(ValueError, match="`y` should not be passed"):
        fit(tmp_path, Rows(), y=np.zeros((24, 1)))
    with pytest.raises(ValueError, match="class_weight"):
        fit(tmp_path, Rows(), class_weight={0: 1.0})


def test_batches_that_are_no_tuples_are_keras_own_error(tmp_path):
    class Bare(Rows):
        def __iter__(self):
            return (x for x, _ in super().__iter__())

    with pytest.raises(ValueError, match="must return a tuple"):
        fit(tmp_path, Bare())


def test_another_class_is_refused(tmp_path):
    fit(tmp_path, Rows(), at=(1, 2))
    with pytest.raises(resilient.CheckpointMismatchError, match="Sized"):
        fit(tmp_path, Sized())


class Losses(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.losses = []

    def on_test_end(self, logs=None):
        self.losses.append(float(logs["loss"]))


@pytest.mark.parametrize("steps", [2, 4])
def test_validation_goes_on(steps, tmp_path):
    """Each evaluation takes the next batches of the validation data, to its end."""

    def losses(directory, *at):
        seen, net = Losses(), model()
        with contextlib.suppress(Interrupted):
            resilient.fit(
                net,
                Sized(),
                checkpoint_dir=tmp_path / directory,
                validation_data=Sized(),
                validation_steps=steps,
                epochs=5,
                save_freq=1,
                verbose=0,
                callbacks=[seen, Interrupt(*at)],
            )
        return seen.losses

    whole = losses("whole")
    losses("parts", 1, 2)
    other_seed()
    losses("parts", 3, 2)
    other_seed()
    assert losses("parts") == whole
    assert len(whole) == len(set(whole)) == 5
