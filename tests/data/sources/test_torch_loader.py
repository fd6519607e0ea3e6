"""DataLoaders get back to any batch, load little for it, and refuse other data."""

import gc
import random
import warnings

import keras
import numpy as np
import pytest
from support import fitting

import resilient
from resilient import DataNotResumableError, NotExactWarning, NotSupportedError
from resilient.backends import get_backend
from resilient.data import DataOptions
from resilient.data.source import SourceContext
from resilient.serialization.json_values import decode, encode
from resilient.serialization.position import DataPosition
from resilient.serialization.schema import from_json, to_json
from resilient.state.rng import capture, kept_random_state, restore

torch = pytest.importorskip("torch")
torchdata = pytest.importorskip("torchdata.stateful_dataloader")

from torch.utils.data import (  # noqa: E402
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
)

from resilient.data.torch_loader.adapter import TorchLoaderData  # noqa: E402

pytestmark = [
    pytest.mark.spread,
    pytest.mark.waits,
    pytest.mark.sources,
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata's
    # Workers are forked; JAX warns that it has threads.
    pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning"),
]

SAMPLES = 20


class Numbers(Dataset):
    """Sample ``i`` is ``i``, three times, and its sum; it counts what is loaded."""

    def __init__(self, factor=1, noise=False, samples=SAMPLES):
        self.factor, self.noise, self.samples = factor, noise, samples
        self.level = 0

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        loaded.append(index)
        value = self.factor * (index + self.level)
        value += random.random() + np.random.rand() if self.noise else 0
        return np.full(3, value, "float32"), np.full(1, 3 * index, "float32")


loaded: list[int] = []


class Stream(IterableDataset):
    """The numbers as they come; ``state`` is what ``state_dict`` gives."""

    def __init__(self, state=dict):
        self.start, self.next, self._state = 0, 0, state

    def __len__(self):
        return SAMPLES

    def __iter__(self):
        first, self.start = self.start, 0
        for number in range(first, SAMPLES):
            self.next = number + 1
            loaded.append(number)
            yield np.full(3, number, "float32"), np.zeros(1, "float32")

    def state_dict(self):
        return {"next": self.next, "tensor": torch.arange(2), "more": self._state()}

    def load_state_dict(self, state):
        assert torch.equal(state["tensor"], torch.arange(2))
        self.start = state["next"]


class Replayable(Stream):
    """Without the two methods."""

    state_dict = load_state_dict = None


class EachTime(Sampler):
    """Draws a global random number for every index."""

    def __init__(self, length=SAMPLES):
        self.length = length

    def __len__(self):
        return self.length

    def __iter__(self):
        left = list(range(self.length))
        while left:
            yield left.pop(np.random.randint(len(left))) % SAMPLES


@pytest.fixture
def _workers_end(monkeypatch):
    """End persistent workers with the test that started them.

    Where the garbage collector ends them, in whatever test it runs, torch waits five
    seconds for each: their queues are closed before they are told.
    """
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.2)
    yield
    gc.collect()


def adapter(loader, **settings):
    settings = SourceContext(get_backend(), verbose=False, **settings)
    made = TorchLoaderData(loader, settings=settings)
    made.on_epoch_begin()
    return made


def seed(value):
    keras.utils.set_random_seed(value)
    torch.manual_seed(value)


def plain(batches):
    return [[part.numpy().tolist() for part in batch] for batch in batches]


def saved(ours, given):
    """The position as a checkpoint has it, and the random state."""
    arrays = {}
    data = encode(to_json(ours.position(given, held=True)), arrays, "position")
    position = from_json(DataPosition, decode(data, arrays))
    return position, capture(get_backend())


def went_on(make, given, noise=lambda: None, **settings):
    """Batches after ``given`` ones: of one loader, and of another made elsewhere."""
    seed(1)
    first = adapter(make(), **settings)
    batches = iter(first.tracked)
    for _ in range(given):
        next(batches)
        noise()
    position, state = saved(first, given)
    expected = plain(batches) + plain(first.tracked)
    seed(2)
    second = adapter(make(), **settings)
    second.resume(position)
    loaded.clear()
    with kept_random_state(get_backend()):
        second.seek(position)
    loads = len(loaded)
    restore(get_backend(), state)
    return expected, plain(second.tracked) + plain(second.tracked), loads


def shuffled(dataset=Numbers, cls=DataLoader, **arguments):
    arguments = {"batch_size": 4, "shuffle": True} | arguments
    return lambda: cls(dataset(), **arguments)


STATEFUL = torchdata.StatefulDataLoader
LOADERS = {
    "shuffled": shuffled(),
    "dropping the last": shuffled(batch_size=3, drop_last=True),
    "single samples": lambda: DataLoader(Numbers(), batch_size=None, shuffle=True),
    "drawing each time": lambda: DataLoader(
        Numbers(noise=True), batch_size=4, sampler=EachTime()
    ),
    "with replacement": lambda: DataLoader(
        Numbers(), batch_size=4, sampler=RandomSampler(range(20), replacement=True)
    ),
    "batches of its own": lambda: DataLoader(
        Numbers(), batch_sampler=BatchSampler(EachTime(), 4, True)
    ),
    "random generator": lambda: DataLoader(
        Numbers(),
        batch_size=4,
        shuffle=True,
        generator=torch.Generator().manual_seed(random.randrange(99)),
    ),
    "torchdata": shuffled(cls=STATEFUL),
    "torchdata, own sampler": lambda: STATEFUL(
        Numbers(), batch_size=4, sampler=EachTime()
    ),
    "torchdata, stream": shuffled(Stream, STATEFUL, shuffle=None),
}
STREAM = shuffled(Stream, shuffle=None)  # it can only be replayed


@pytest.mark.everywhere
@pytest.mark.parametrize("given", [0, 1, 3, 5])
@pytest.mark.parametrize("name", LOADERS)
def test_another_process_goes_on(name, given):
    """From any batch, in this iterator and the next; at most one batch is loaded."""
    expected, found, loads = went_on(LOADERS[name], given, noise=np.random.rand)
    assert len(expected) > 5 - given
    assert found == expected
    assert loads <= 6


@pytest.mark.parametrize("given", [0, 3])
@pytest.mark.parametrize(
    "make", [LOADERS["shuffled"], LOADERS["with replacement"], STREAM]
)
def test_replaying_loads_what_was_loaded(make, given):
    """``replay_data=True`` draws every batch again, and nothing more."""
    expected, found, loads = went_on(make, given, options=DataOptions(replay=True))
    assert found == expected
    size = 4
    assert loads == given * size


@pytest.mark.parametrize("cls", [DataLoader, STATEFUL])
def test_workers_draw_the_same_numbers_again(cls):
    """Random augmentation in workers is exact where it is replayed."""
    make = shuffled(lambda: Numbers(noise=True), cls, num_workers=2)
    expected, found, _ = went_on(make, 2, options=DataOptions(replay=True))
    assert len(expected) == 8
    assert found == expected


@pytest.mark.usefixtures("_workers_end")
@pytest.mark.parametrize("given", [0, 2, 5])
@pytest.mark.parametrize("lasting", [False, True])
def test_order_of_a_stateful_loader_with_workers(lasting, given):
    """Exact where its workers draw nothing; a warning says what is not, and when."""
    make = shuffled(cls=STATEFUL, num_workers=2, persistent_workers=lasting)
    with pytest.warns(NotExactWarning, match="workers of a StatefulDataLoader") as seen:
        expected, found, _ = went_on(make, given)
    assert found == expected
    said = [w for w in seen if issubclass(w.category, NotExactWarning)]
    assert len(said) == 2  # one for each process
    assert "if the workers of a StatefulDataLoader draw" in str(said[0].message)
    assert len(expected) == 10 - given


def test_a_stateful_loader_without_workers_is_silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotExactWarning)
        adapter(STATEFUL(Numbers()))
        adapter(STATEFUL(Numbers(), num_workers=1), options=DataOptions(replay=True))


@pytest.mark.usefixtures("_workers_end")
@pytest.mark.parametrize("given", [0, 2, 5])
def test_lasting_workers_between_two_fits(given):
    """A second fit on the same loader knows what the first one did to its workers."""

    def two_fits(first_position=None):
        loader = shuffled(
            lambda: Numbers(noise=True), num_workers=1, persistent_workers=True
        )()
        first = adapter(loader)
        if first_position is None:
            list(first.tracked)
        else:
            first.resume(first_position[0])
            restore(get_backend(), first_position[1])
        return first, adapter(loader)

    seed(1)
    first, second = two_fits()
    end = (first.position(0, held=False), capture(get_backend()))
    batches = iter(second.tracked)
    for _ in range(given):
        next(batches)
    position, state = saved(second, given)
    expected = plain(batches)
    seed(2)
    _, again = two_fits(end)
    again.resume(position)
    again.seek(position)
    restore(get_backend(), state)
    assert plain(again.tracked) == expected


@pytest.mark.usefixtures("_workers_end")
def test_workers_that_ran_before_are_named():
    loader = DataLoader(Numbers(), num_workers=1, persistent_workers=True)
    next(iter(loader))
    with pytest.warns(NotExactWarning, match="used before this fit"):
        adapter(loader)


def test_workers_out_of_order_are_named():
    with pytest.warns(NotExactWarning, match="in_order=False"):
        adapter(DataLoader(Numbers(), num_workers=1, in_order=False))


def test_a_sampler_that_draws_too_often_is_named():
    """States before draws in turn with others are kept up to a number of them."""
    ours = adapter(DataLoader(Numbers(), batch_size=2, sampler=EachTime(2010)))
    batches = iter(ours.tracked)
    for _ in range(1000):
        next(batches)
        np.random.rand()
    ours.position(1000, held=True)
    next(batches)
    with pytest.warns(NotExactWarning, match="EachTime: it draws global random"):
        ours.position(1001, held=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours.position(1001, held=True)  # said once


def test_a_state_that_cannot_be_kept_is_refused():
    ours = adapter(STATEFUL(Stream(object), batch_size=4))
    next(iter(ours.tracked))
    with pytest.raises(NotSupportedError, match=r"state_dict\(\).*\n.*object"):
        ours.position(1, held=True)


def test_data_that_ends_sooner_is_refused():
    first = adapter(shuffled(shuffle=False)())
    batches = iter(first.tracked)
    for _ in range(4):
        next(batches)
    position = first.position(4, held=True)
    for replay in (False, True):
        options = DataOptions(replay=replay)
        second = adapter(DataLoader(Numbers(samples=10), batch_size=4), options=options)
        with pytest.raises(
            DataNotResumableError, match="3 batches now, at least 4 before"
        ):
            second.seek(position)


# Whole fits. -----------------------------------------------------------------------


def fit(directory, loader, **given):
    """Go on with what ``interrupted`` left."""
    net = fitting.model()
    arguments = {"x": loader, "y": None, "batch_size": None, "shuffle": False}
    fitting.fit(net, directory, callbacks=[fitting.Interrupt()], **arguments, **given)
    return net


def interrupted(directory, loader, function=None):
    """Interrupted in the second epoch, after a save at its third batch."""
    arguments = {"x": loader, "y": None, "batch_size": None, "shuffle": False}
    if function is not None:
        arguments["callbacks"] = [fitting.Do(function, 1, 0)]
    fitting.interrupted(directory, 1, 3, **arguments)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_changed_samples_are_refused(tmp_path):
    """The last batch trained is loaded again, and it is another one."""
    interrupted(tmp_path, DataLoader(Numbers(), batch_size=4))
    changed = DataLoader(Numbers(), batch_size=4)
    changed.dataset.__class__ = Doubled
    with pytest.raises(resilient.CheckpointMismatchError, match="dataset"):
        fit(tmp_path, changed)
    Doubled.__qualname__ = Numbers.__qualname__
    with pytest.raises(DataNotResumableError, match=r"batch \d+ of the iterator"):
        fit(tmp_path, changed)
    with pytest.warns(NotExactWarning, match="has different content now"):
        fit(tmp_path, changed, on_data_change="warn")


class Doubled(Numbers):
    """Other samples."""

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return 2 * x, y


def test_a_stream_that_changed_is_refused(tmp_path):
    """After a replay the last batch is always checked."""
    interrupted(tmp_path, DataLoader(Replayable(), batch_size=4))
    changed = Replayable()
    changed.start = 1
    with pytest.raises(DataNotResumableError, match="different content now"):
        fit(tmp_path, DataLoader(changed, batch_size=4))


def test_another_length_is_refused(tmp_path):
    interrupted(tmp_path, DataLoader(Numbers(), batch_size=4))
    longer = DataLoader(Numbers(samples=40), batch_size=4)
    with pytest.raises(resilient.CheckpointMismatchError, match="samples"):
        fit(tmp_path, longer)


def test_samples_that_callbacks_change_are_not_refused(tmp_path):
    """Loaded again, the last batch would be another one: it is not checked."""
    dataset = Numbers()

    def harder():
        dataset.level = 5

    interrupted(tmp_path, DataLoader(dataset, batch_size=4), harder)
    again = Numbers()
    fitting.fit(
        fitting.model(),
        tmp_path,
        x=DataLoader(again, batch_size=4),
        y=None,
        batch_size=None,
        shuffle=False,
        callbacks=[fitting.Interrupt(), fitting.Do(lambda: None, 1, 0)],
    )
    assert again.level == 5


# More of a loader's parts. -----------------------------------------------------------


class Resumable(EachTime):
    """A sampler with the two methods, which torchdata would call."""

    def __init__(self):
        super().__init__()
        self.begun, self.skip = 0, 0

    def __iter__(self):
        self.begun += 1
        first, self.skip = self.skip, 0
        return iter([(i + self.begun) % SAMPLES for i in range(first, SAMPLES)])

    def state_dict(self):
        return {"begun": self.begun}

    def load_state_dict(self, state):
        self.begun, self.skip = state["begun"], 8


@pytest.mark.parametrize("given", [0, 3, 5])
@pytest.mark.parametrize("cls", [DataLoader, STATEFUL])
def test_a_sampler_with_state_goes_on_where_it_was(cls, given):
    """Its attributes are set again; nothing is left behind for the next iterator."""
    expected, found, _ = went_on(
        lambda: cls(Numbers(), batch_size=4, sampler=Resumable()), given
    )
    assert found == expected


@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0), (1, 2)])
def test_the_number_of_workers_may_change(before, after):
    """Without random numbers in workers the data is the same."""
    counts = iter([before, after])

    def make():
        return shuffled(num_workers=next(counts))()

    expected, found, _ = went_on(make, 3)
    assert len(expected) == 7
    assert found == expected
