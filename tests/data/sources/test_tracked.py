"""What is between Keras and a source: counts, batches drawn ahead, the last batch."""

import threading
import warnings

import numpy as np
import pytest

from resilient import DataNotResumableError, NotExactWarning
from resilient.backends import get_backend
from resilient.data import DataOptions
from resilient.data.source import DataSource, SourceContext
from resilient.data.tracked import TrackedIterable, lazily

pytestmark = [pytest.mark.sources, pytest.mark.waits]


class Numbers(DataSource):
    """A source of the arrays [0], [1], ... that can start anywhere."""

    name = "numbers"

    def __init__(self, length=10, factor=1):
        self.settings = None  # given by `tracked`
        self.length, self.factor = length, factor
        self.begun = 0
        self.resumed = []

    def _from(self, first):
        for number in range(first, self.length):
            yield np.array([number * self.factor])

    def begin(self):
        self.begun += 1
        return self._from(0)

    def position(self, *, live):
        return {"begun": self.begun, "live": live}

    def resume(self, position):
        self.resumed.append(position)

    def seek(self, position, given):
        last = np.array([(given - 1) * self.factor]) if given else None
        return self._from(given), last

    def fingerprint(self):
        return {"kind": "numbers"}


def tracked(source=None, **settings):
    source = source or Numbers()
    source.settings = SourceContext(get_backend(), **settings)
    return TrackedIterable(source)


def drawn(batches, count):
    return [int(next(batches)[0]) for _ in range(count)]


@pytest.mark.parametrize(
    ("ahead", "look"), [(False, 0), (True, 0), (True, 1), (True, 3)]
)
def test_the_next_batch_is_the_first_not_trained(ahead, look):
    """Batches that were drawn and not trained are in the position, and come first."""
    first = tracked(ahead=ahead)
    batches = iter(first)
    drawn(batches, 4 + look)
    position = first.position(4, held=True)
    assert position.given == 4 + look
    assert len(position.pending) == look
    again = tracked(ahead=ahead)
    again.seek(position)
    assert drawn(iter(again), 6) == [4, 5, 6, 7, 8, 9]
    assert again.source.begun == 0


def test_two_resumes_in_one_epoch():
    """The second position is told from where the first resume began."""
    one = tracked(ahead=True)
    drawn(iter(one), 4)
    two = tracked(ahead=True)
    two.seek(one.position(2, held=True))
    batches = iter(two)
    assert drawn(batches, 3) == [2, 3, 4]
    three = tracked(ahead=True)
    three.seek(two.position(3, held=True))
    assert drawn(iter(three), 3) == [3, 4, 5]


def test_what_was_trained_is_forgotten_but_the_last_batch():
    one = tracked(ahead=True)
    batches = iter(one)
    drawn(batches, 6)
    one.on_trained(4)
    assert [int(b[0]) for b in one._live.recent] == [4, 5]
    one.on_trained(6)
    assert [int(b[0]) for b in one._live.recent] == [5]


def test_between_epochs_the_next_iterator_is_a_new_one():
    one = tracked()
    drawn(iter(one), 10)
    position = one.position(0, held=False)
    assert position.given is None
    assert position.source == {"begun": 1, "live": False}
    again = tracked()
    again.seek(position)
    assert drawn(iter(again), 2) == [0, 1]
    assert again.source.begun == 1


def test_a_held_iterator_that_gave_nothing_yet_is_positioned():
    """torch begins an iterator when it is made: its random draws are behind it."""
    one = tracked()
    drawn(iter(one), 10)
    iter(one)
    assert one.position(0, held=True).given == 0
    assert one.position(0, held=False).given is None


def test_other_data_is_refused_and_says_how_to_accept_it():
    one = tracked()
    drawn(iter(one), 3)
    changed = tracked(Numbers(factor=2), argument="x")
    with pytest.raises(DataNotResumableError, match="different content now") as found:
        changed.seek(one.position(3, held=True))
    assert "`x` (numbers): batch 3 of the iterator" in str(found.value)
    assert 'on_data_change="warn"' in str(found.value)


def test_other_data_is_accepted_and_said_once():
    one = tracked()
    drawn(iter(one), 3)
    changed = tracked(Numbers(factor=2), options=DataOptions("warn"))
    with pytest.warns(NotExactWarning, match="has different content now") as found:
        changed.seek(one.position(3, held=True))
    assert len(found) == 1
    assert drawn(iter(changed), 1) == [6]


def test_equal_data_is_no_warning():
    one = tracked()
    drawn(iter(one), 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tracked(options=DataOptions("warn")).seek(one.position(3, held=True))


def test_a_position_waits_for_a_batch_in_the_making():
    """Otherwise it would tell of a batch that is neither given nor to come."""
    making, made = threading.Event(), threading.Event()

    class Slow(Numbers):
        def _from(self, first):
            for number in range(first, self.length):
                if number == 2:
                    making.set()
                    made.wait(20)
                yield np.array([number])

    one = tracked(Slow(), ahead=True)
    batches = iter(one)
    drawn(batches, 2)
    thread = threading.Thread(target=lambda: next(batches))
    thread.start()
    assert making.wait(20)
    threading.Timer(0.2, made.set).start()
    with one.lock:
        assert one.position(2, held=True).given == 3
    thread.join()


def test_lazily_begins_with_the_first_batch():
    one = tracked()
    batches = lazily(one)
    assert one.source.begun == 0
    assert drawn(batches, 1) == [0]
    assert one.source.begun == 1
