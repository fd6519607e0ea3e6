"""Grain's datasets and loaders: back by their iterators' states, verified."""

import grain
import numpy as np
import pytest
from support.fitting import random_state
from support.grain_parts import ROWS, Noise, Source

from resilient import DataNotResumableError, NotExactWarning
from resilient.backends import get_backend
from resilient.data import DataOptions
from resilient.data.grain import GrainData, GrainSource
from resilient.data.source import SourceContext

pytestmark = [pytest.mark.spread, pytest.mark.sources, pytest.mark.waits]


def maps(rows=ROWS):
    data = grain.MapDataset.source(rows).shuffle(seed=1)
    return data.random_map(Noise(), seed=2).batch(4)


def filtered(rows=ROWS):
    options = grain.ReadOptions(num_threads=2, prefetch_buffer_size=3)
    data = grain.MapDataset.source(rows).shuffle(seed=1).to_iter_dataset(options)
    return data.filter(lambda row: row[0] % 2 == 0).batch(4)


def windows(rows=ROWS):
    data = grain.MapDataset.source(rows).to_iter_dataset()
    return grain.experimental.WindowShuffleIterDataset(
        data, window_size=8, seed=3
    ).batch(4)


def loader(rows=ROWS, **options):
    source = Source(rows)
    sampler = grain.samplers.IndexSampler(
        len(source), shuffle=True, seed=4, num_epochs=2
    )
    return grain.DataLoader(
        data_source=source,
        sampler=sampler,
        operations=[Noise(), grain.transforms.Batch(4)],
        **options,
    )


KINDS = [maps, filtered, windows, loader]


def adapter(dataset, **settings):
    return GrainData(dataset, settings=SourceContext(get_backend(), **settings))


def again(dataset, position, **settings):
    one = adapter(dataset, verbose=False, **settings)
    one.seek(position)
    return one


def drawn(one, count):
    iterator = iter(one.tracked)
    return [next(iterator) for _ in range(count)]


@pytest.mark.parametrize("dataset", KINDS)
@pytest.mark.parametrize("replay", [False, True])
@pytest.mark.parametrize("given", [0, 1, pytest.param(3, marks=pytest.mark.everywhere)])
def test_it_goes_on_where_it_was(dataset, replay, given):
    expected = list(adapter(dataset()).tracked)
    one = adapter(dataset(), options=DataOptions(replay=replay))
    drawn(one, given)
    position = one.position(given, held=True)
    assert ("before" in position.source) == (given > 0 and not replay)
    rest = list(again(dataset(), position, options=DataOptions(replay=replay)).tracked)
    np.testing.assert_array_equal(expected[given:], rest)


@pytest.mark.parametrize("dataset", KINDS)
def test_two_resumes_in_one_epoch(dataset):
    expected = list(adapter(dataset()).tracked)
    one = adapter(dataset())
    drawn(one, 2)
    two = again(dataset(), one.position(2, held=True))
    drawn(two, 1)
    three = again(dataset(), two.position(3, held=True))
    np.testing.assert_array_equal(expected[3:], list(three.tracked))


def test_getting_back_reads_one_batch():
    """Not all that was read before: Keras's own two batches, and the last one."""
    one = adapter(loader())
    drawn(one, 12)
    position = one.position(12, held=True)
    options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    data = loader(read_options=options)
    other = adapter(data)
    before = len(data._data_source.read)
    other.seek(position)
    assert len(data._data_source.read) - before == 4


@pytest.mark.parametrize("dataset", [maps, filtered, loader])
def test_other_data_is_refused(dataset):
    one = adapter(dataset())
    drawn(one, 3)
    position = one.position(3, held=True)
    with pytest.raises(DataNotResumableError, match="different content now") as found:
        again(dataset(ROWS[::-1].copy()), position)
    assert "`x` (a Grain " in str(found.value)
    with pytest.warns(NotExactWarning, match="has different content now"):
        again(dataset(ROWS[::-1].copy()), position, options=DataOptions("warn"))


@pytest.mark.parametrize("dataset", [maps, filtered])
@pytest.mark.parametrize("replay", [False, True])
def test_less_data_is_refused(dataset, replay):
    one = adapter(dataset(), options=DataOptions(replay=replay))
    drawn(one, 4)
    position = one.position(4, held=True)
    with pytest.raises(DataNotResumableError):
        again(dataset(ROWS[:10]), position, options=DataOptions(replay=replay))


def test_another_sampler_is_refused_with_grains_own_reason():
    one = adapter(loader())
    drawn(one, 3)
    with pytest.raises(
        DataNotResumableError, match="cannot return to its position"
    ) as found:
        again(loader(ROWS[:28]), one.position(3, held=True))
    assert "Sampler in checkpoint does not match" in str(found.value)
    assert 'resume="never"' in str(found.value)


class Stateless(grain.DatasetIterator):
    """A user's own iterator that has no state to tell."""

    def __init__(self):
        super().__init__()
        self.rows = iter(ROWS.reshape(8, 4, 3))

    def __next__(self):
        return next(self.rows)

    def get_state(self):
        raise NotImplementedError

    def set_state(self, state):
        raise NotImplementedError


class Odd(Stateless):
    """One whose state no checkpoint can hold."""

    def get_state(self):
        return {"odd": lambda: None}


@pytest.mark.parametrize("iterator", [Stateless, Odd])
def test_without_a_state_it_is_replayed(iterator):
    class Data(grain.IterDataset):
        def __iter__(self):
            return iterator()

    one = adapter(Data())
    drawn(one, 5)
    position = one.position(5, held=True)
    assert "before" not in position.source
    rest = list(again(Data(), position).tracked)
    np.testing.assert_array_equal(ROWS.reshape(8, 4, 3)[5:], rest)


def test_positions_draw_nothing_and_leave_no_trace():
    one = adapter(maps())
    before = random_state()
    drawn(one, 3)
    first = one.position(3, held=True)
    assert one.position(3, held=True) == first
    assert random_state() == before
    assert one.position(0, held=False).source == {"kind": "grain"}


def test_worker_processes():
    """``mp_prefetch``: the state tells of each worker."""
    flags = pytest.importorskip("absl.flags")
    flags.FLAGS.mark_as_parsed()  # Grain reads one where workers start
    options = grain.MultiprocessingOptions(num_workers=2)

    def data():
        return maps().to_iter_dataset().mp_prefetch(options)

    whole = adapter(data())
    iterator = iter(whole.tracked)
    for _ in range(3):
        next(iterator)
    position = whole.position(3, held=True)
    expected = list(iterator)
    rest = list(again(data(), position).tracked)
    assert len(rest) == 5
    np.testing.assert_array_equal(expected, rest)


def test_worker_processes_of_a_loader():
    """Each worker has its own index, and whose turn it is counts, too."""
    flags = pytest.importorskip("absl.flags")
    flags.FLAGS.mark_as_parsed()

    def source():
        data = loader(worker_count=2)
        return GrainSource(data, SourceContext(get_backend()), batch_size=4)

    one = source()
    batches = one.begin()
    drawn = [next(batches) for _ in range(3)]
    position = one.position(live=True)
    expected = list(batches)
    rest, last = source().seek(position, 3)
    np.testing.assert_array_equal(last, drawn[-1])
    np.testing.assert_array_equal(expected, list(rest))
    assert len(expected) == 13
