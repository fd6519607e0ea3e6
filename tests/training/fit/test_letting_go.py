"""Fit lets go of what it drew batches from, however it ends.

Where that is left to the garbage collector, an iterator of tf.data holds up everything
when it is collected: for as long as it lived, a minute at most.
"""

import contextlib
import gc
import signal
import weakref

import numpy as np
import pytest
from support import fitting

import resilient
from resilient.training.fit.iterators import TrainingIterator

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't")


def fail():
    raise fitting.Interrupted


def stop():
    signal.raise_signal(signal.SIGTERM)


def bad_data():
    x, y = fitting.data()
    y[:] = np.nan
    return {"x": x, "y": y}


ENDS = {
    "as planned": {},
    "in mid-pass": {"steps_per_epoch": 2, "epochs": 1},
    "with an error": {"callbacks": [fitting.Do(fail)]},
    "with an error at an epoch's end": {"callbacks": [fitting.Do(fail, 1, None)]},
    "asked to stop": {"callbacks": [fitting.Do(stop)]},
    "with NaN": {**bad_data(), "on_nan": "stop"},
}
EVERYWHERE = {"as planned", "in mid-pass", "with an error"}


@pytest.fixture
def drawn_from(monkeypatch):
    """References to all iterators that fit drew from; nothing is collected."""
    references, plain = [], TrainingIterator._enumerate_iterator

    def spied(self):
        for begin, end, iterator in plain(self):
            drawn = iterator
            if isinstance(iterator, map):  # where witnesses see the batches
                _, (_, drawn) = iterator.__reduce__()
            references.append(weakref.ref(drawn))
            yield begin, end, iterator

    monkeypatch.setattr(TrainingIterator, "_enumerate_iterator", spied)
    gc.collect()
    gc.disable()
    yield references
    gc.enable()


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(
            given, id=name, marks=[pytest.mark.spread] * (name not in EVERYWHERE)
        )
        for name, given in ENDS.items()
    ],
)
def test_iterators_go_when_fit_ends(tmp_path, drawn_from, given):
    ends = (fitting.Interrupted, resilient.Preempted, resilient.DivergedError)
    net = fitting.model()
    with contextlib.suppress(*ends):
        fitting.fit(net, tmp_path, **given)
    assert drawn_from
    assert not any(reference() for reference in drawn_from)
