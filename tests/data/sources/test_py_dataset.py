"""keras.utils.PyDataset: what is verified, said and refused."""

import itertools
import os
import random
import signal
import warnings

import keras
import numpy as np
import pytest
from support import fitting

import resilient
from resilient import keras_internals
from resilient.data.py_dataset.order import Order
from resilient.telemetry.events import read_events

pytestmark = [
    pytest.mark.spread,
    pytest.mark.waits,
    pytest.mark.sources,
    # Keras converts tensors in a way that NumPy 2.4 deprecates.
    pytest.mark.filterwarnings("ignore:__array__ impl:DeprecationWarning"),
]

BATCHES, WIDTH = 6, 4


class Data(keras.utils.PyDataset):
    """Six batches of four rows; remembers which were asked for."""

    def __init__(self, *, workers=0, shift=0.0, batches=BATCHES, **options):
        super().__init__(workers=workers, **options)
        x, y = fitting.data(batches * WIDTH)
        self.x, self.y = x + np.float32(shift), y
        self.batches = batches
        self.asked = _Asked()

    def __len__(self):
        return self.batches

    def __getitem__(self, index):
        self.asked.indices.append(index)
        rows = slice(index * WIDTH, (index + 1) * WIDTH)
        return self.x[rows], self.y[rows]


class _Asked:
    """Has its own state, so that nothing of it belongs to a checkpoint."""

    __slots__ = ("indices",)

    def __init__(self):
        self.indices = []

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def fit(source, directory, net=None, **given):
    net = net or fitting.model()
    arguments = {"epochs": 3, "verbose": 0, "save_freq": 4} | given
    resilient.fit(net, source, checkpoint_dir=directory, **arguments)
    return net


def interrupted(data, directory, epoch=1, batch=2, **given):
    callbacks = [fitting.Interrupt(epoch, batch), *given.pop("callbacks", ())]
    with pytest.raises(fitting.Interrupted):
        fit(data, directory, callbacks=callbacks, **given)


def resumed(source, directory, until=(), **given):
    fitting.other_seed()
    callbacks = [fitting.Interrupt(*until), *given.pop("callbacks", ())]
    net = fitting.model(seed=9)
    fitting.other_seed()
    return fit(source, directory, net, callbacks=callbacks, **given)


def expected(data, **given):
    net = fitting.model()
    net.fit(data, **{"epochs": 3, "verbose": 0} | given)
    return net


@pytest.mark.everywhere
@pytest.mark.parametrize("workers", [0, 2])
def test_resumed_with_other_workers(tmp_path, workers):
    """How batches are made may change between attempts, within an epoch's order."""
    interrupted(Data(workers=workers), tmp_path, epoch=2)
    data = Data(workers=2 - workers)
    actual = resumed(data, tmp_path)
    fitting.assert_equal(expected(Data(workers=0)), actual)


def test_nothing_is_made_again_but_the_last_batch(tmp_path):
    """Getting back costs one batch, wherever the position is."""
    interrupted(Data(batches=40), tmp_path, epoch=0, batch=37, epochs=1)
    data = Data(batches=40)
    resumed(data, tmp_path, epochs=1)
    peeks = 2 if keras.backend.backend() == "tensorflow" else 1
    ahead = 0
    assert len(data.asked.indices) <= peeks + 1 + 4 + ahead


def test_changed_data_is_refused(tmp_path):
    interrupted(Data(), tmp_path)
    with pytest.raises(resilient.DataNotResumableError, match=r"batch .* of the iter"):
        resumed(Data(shift=1.0), tmp_path)


def test_changed_data_is_accepted_where_that_is_asked_for(tmp_path):
    interrupted(Data(), tmp_path)
    with pytest.warns(resilient.NotExactWarning, match="PyDataset, Data"):
        resumed(Data(shift=1.0), tmp_path, on_data_change="warn")


def test_accepted_changes_are_said_once_and_what_follows_is_compared(tmp_path):
    """Batches of the former data are compared with no batch of the new data."""
    interrupted(Data(), tmp_path, batch=4, save_freq=7)
    new = {"on_data_change": "warn", "save_freq": 2}
    said = resilient.NotExactWarning
    with pytest.warns(said) as caught, pytest.raises(fitting.Interrupted):
        resumed(Data(shift=1.0), tmp_path, until=(1, 3), **new)
    assert len([each for each in caught if each.category is said]) == 1
    resumed(Data(shift=1.0), tmp_path)
    found = [each["event"] for each in read_events(tmp_path)]
    assert "not repeated" not in found
    assert "repeated" in found


def test_another_number_of_batches_is_refused(tmp_path):
    interrupted(Data(), tmp_path)
    with pytest.raises(resilient.CheckpointMismatchError, match="batches"):
        resumed(Data(batches=5), tmp_path)


def test_another_class_is_refused(tmp_path):
    class Other(Data):
        pass

    interrupted(Data(), tmp_path)
    with pytest.raises(resilient.CheckpointMismatchError, match="Other"):
        resumed(Other(), tmp_path)


class Drawing(Data):
    """Random augmentation from the global generators: never made again to check."""

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + np.random.normal(size=x.shape).astype("float32"), y


class Level(Data):
    """What a batch is depends on what a callback sets."""

    level = 0.0

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + np.float32(self.level), y


class Raise(keras.callbacks.Callback):
    """Raises the level after every batch."""

    def __init__(self, data):
        super().__init__()
        self._data = data

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass

    def on_train_batch_end(self, batch, logs=None):
        self._data.level += 0.5


def test_random_augmentation_is_no_change_of_the_data(tmp_path):
    interrupted(Drawing(), tmp_path)
    fitting.assert_equal(expected(Drawing()), resumed(Drawing(), tmp_path))


@pytest.mark.skipif(
    keras.backend.backend() == "tensorflow", reason="batches are made ahead of time"
)
def test_a_callback_may_change_the_data(tmp_path):
    """What it set is kept, and is no reason to think that the data changed."""
    plain = Level()
    net = expected(plain, callbacks=[Raise(plain)])
    first, second = Level(), Level()
    interrupted(first, tmp_path, callbacks=[Raise(first)])
    fitting.assert_equal(net, resumed(second, tmp_path, callbacks=[Raise(second)]))
    assert second.level == plain.level


def test_drawing_from_global_generators_with_workers_is_said_once(tmp_path):
    data = Drawing(workers=2)
    with pytest.warns(resilient.NotExactWarning) as caught, _forking():
        fit(data, tmp_path, epochs=2)
    messages = [str(w.message) for w in caught if w.category is not DeprecationWarning]
    found = [m for m in messages if "numpy's global generator" in m]
    assert len(found) == 1
    assert "Drawing.__getitem__" in found[0]


RNG = np.random.default_rng(0)


def _reaching(kind):
    """Data that draws from a generator which is no attribute of its own."""

    class InGlobals(Data):
        def __getitem__(self, index):
            x, y = super().__getitem__(index)
            return x + RNG.normal(size=x.shape).astype("float32"), y

    rng = random.Random(0)

    class InClosure(Data):
        def __getitem__(self, index):
            x, y = super().__getitem__(index)
            return x + np.float32(rng.random()), y

    class Unused(Data):
        def on_epoch_end(self):
            RNG.normal() + rng.random()  # by one thread, when no batch is made

    return {"globals": InGlobals, "closure": InClosure, "unused": Unused}[kind]


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        (
            "globals",
            (
                "InGlobals.__getitem__ draws from, or changes, "
                "self:InGlobals.__getitem__ uses R"
            ),
        ),
        (
            "closure",
            (
                "InClosure.__getitem__ draws from, or changes, "
                "self:InClosure.__getitem__ remembers r"
            ),
        ),
    ],
)
def test_drawing_from_any_generator_with_workers_is_said_once(tmp_path, kind, part):
    data = _reaching(kind)(workers=2)
    with pytest.warns(resilient.NotExactWarning) as caught, _forking():
        fit(data, tmp_path, epochs=2)
    messages = [str(w.message) for w in caught if "timing decides" in str(w.message)]
    assert len(messages) == 1
    assert part in messages[0]
    assert "draw from numpy.random.default_rng((seed, epoch, index))" in messages[0]


def test_without_workers_any_generator_is_exact(tmp_path):
    state = RNG.bit_generator.state
    net = expected(_reaching("globals")())
    RNG.bit_generator.state = state
    with warnings.catch_warnings():
        warnings.simplefilter("error", resilient.NotExactWarning)
        interrupted(_reaching("globals")(), tmp_path)
        RNG.normal(size=99)
        actual = resumed(_reaching("globals")(), tmp_path)
    fitting.assert_equal(net, actual)


def test_changing_attributes_with_workers_is_said_once(tmp_path):
    class Counting(Data):
        made = 0

        def __getitem__(self, index):
            self.made += 1
            return super().__getitem__(index)

    data = Counting(workers=2)
    with pytest.warns(resilient.NotExactWarning, match=r"self\.made"), _forking():
        fit(data, tmp_path, epochs=2)


@pytest.mark.parametrize("processes", [False, True])
@pytest.mark.parametrize("cls", [Data, _reaching("unused")])
def test_well_behaved_workers_say_nothing(tmp_path, cls, processes):
    data = cls(workers=2, use_multiprocessing=processes)
    with warnings.catch_warnings(), _forking():
        warnings.simplefilter("error", resilient.NotExactWarning)
        fit(data, tmp_path, epochs=2)


@pytest.mark.everywhere
def test_where_fit_itself_trains_other_batches_is_said_once_in_a_run(
    tmp_path, caplog, backend
):
    """In the first attempt, for training data with workers, and not in a loop."""

    def said():
        records = list(caplog.records)
        caplog.clear()
        return [
            r.levelname for r in records if "Several workers make" in r.getMessage()
        ]

    several = Data(workers=2)
    interrupted(several, tmp_path / "several", validation_data=Data(workers=2))
    assert said() == ([] if backend == "tensorflow" else ["WARNING"])
    resumed(Data(workers=2), tmp_path / "several", validation_data=Data(workers=2))
    fit(Data(), tmp_path / "none")
    for _ in resilient.Run(tmp_path / "loop", verbose=0).loop(several, epochs=1):
        pass
    assert said() == []


class _forking(warnings.catch_warnings):
    """Python and JAX warn of a fork in a process with threads, which Keras does."""

    def __enter__(self):
        found = super().__enter__()
        warnings.filterwarnings("ignore", "(?s).*fork")
        return found


def test_errors_in_workers_reach_the_user(tmp_path):
    class Broken(Data):
        def __getitem__(self, index):
            if index == 3:
                raise RuntimeError("no such file")
            return super().__getitem__(index)

    with pytest.raises(Exception, match="no such file"):
        fit(Broken(workers=2), tmp_path, shuffle=False)


def test_uncaptured_attributes_are_said_once(tmp_path):
    class Endless(Data):
        def __init__(self):
            super().__init__()
            self.numbers = itertools.count()

    with pytest.warns(resilient.NotExactWarning, match=r"Endless\.numbers") as caught:
        fit(Endless(), tmp_path)
    assert len([w for w in caught if "numbers" in str(w.message)]) == 1


class Numbers(keras.utils.PyDataset):
    """Each batch is its index."""

    def __init__(self, length):
        super().__init__()
        self._length = length

    @property
    def num_batches(self):
        return self._length

    def __getitem__(self, index):
        return (index,)


def shuffling(length):
    """Keras's own adapter, which says how orders are drawn."""
    return keras_internals.PyDatasetAdapter(Numbers(length), shuffle=True)


def taken(order, count):
    found = []
    for _ in range(count):
        found.append(next(order.upcoming()))
        order.take()
    return found


@pytest.mark.parametrize("peek", [0, 1])
def test_order_with_workers_is_drawn_as_keras_draws_it_and_complete(peek):
    """A peeked batch is not missing from the epoch, and no order is used up by it."""
    random.seed(3)
    adapter, theirs = shuffling(7), []
    for counts in [False] * peek + [True] * 4:  # as an epoch
        theirs.append([index for (index,) in adapter._finite_generator()])
        if counts:
            adapter.on_epoch_end()
    random.seed(3)
    adapter, ours = shuffling(7), []
    order = Order(adapter, counts_on=True)
    for count in [1] * peek + [7] * 4:
        order.begin()
        ours.append(taken(order, count))
        if count == 7:
            adapter.on_epoch_end()
    assert ours[peek:] == theirs[peek:]


def test_a_held_iterator_finishes_its_order():
    """Keras holds on to it with steps_per_epoch; every batch comes once."""
    order = Order(shuffling(7), counts_on=True)
    order.begin()
    first = taken(order, 4)
    assert sorted(first + taken(order, 3)) == list(range(7))
    order.begin()
    assert sorted(taken(order, 7)) == list(range(7))


@pytest.mark.parametrize("workers", [False, True])
@pytest.mark.parametrize("length", [9, None])
def test_order_goes_on_at_a_position(workers, length):
    def begun():
        order = Order(shuffling(length), counts_on=workers)
        order.begin()
        return order

    order = begun()
    taken(order, 4)
    position = order.position()
    other = begun()
    other.resume(position)
    assert taken(order, 4) == taken(other, 4)
    random.seed(5)
    order.begin()
    random.seed(5)
    other.begin()
    assert taken(order, 5) == taken(other, 5)


class Killed(Data):
    """Its process is killed as by a system that runs out of memory."""

    def __getitem__(self, index):
        if index == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


@pytest.mark.filterwarnings("ignore:.*fork")
def test_worker_process_that_is_killed_is_an_error(tmp_path):
    data = Killed(workers=2, use_multiprocessing=True, max_queue_size=2)
    # TensorFlow's data pipeline puts the error into one of its own.
    in_tensorflow = keras.backend.backend() == "tensorflow"
    expected = Exception if in_tensorflow else resilient.errors.DataWorkerError
    with pytest.raises(expected, match="exit code -9"):
        fit(data, tmp_path)
