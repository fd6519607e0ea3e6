"""How often a witness digests: by a clock of the test's own; and what is comparable."""

import math
from contextlib import nullcontext

import keras
import numpy as np
import pytest

from resilient.backends import get_backend
from resilient.backends.base import ALONE as PART
from resilient.backends.base import Part
from resilient.data import DataOptions
from resilient.distributed.group import ALONE
from resilient.errors import NotExactError
from resilient.telemetry.events import Events, read_events
from resilient.witness.witness import Witness

STEP, COST = 1.0, 0.5  # seconds


class Clocked:
    """A witness of steps of a second, and of digests of half a second."""

    def __init__(self, directory, begin=0, *, part=PART, compares=False):
        self.now, self.digested, self.leaf = 0.0, [], 1.0
        self.witness = Witness(
            directory,
            part,
            get_backend().peek,
            ALONE,
            Events(directory),
            data=DataOptions(),
            on_inexact="raise",
            say=lambda line, within_epoch: None,
            clock=lambda: self.now,
        )
        self.count = self.witness.begin(begin, compares=compares)

    def train(self, steps, saves=()):
        for step in steps:
            self.now += STEP
            self.witness.trained(step, self.leaves, lambda: None)
            if step in saves:
                self.witness.saved()

    def leaves(self, step):
        self.now += COST
        self.digested.append(step)
        return [keras.ops.convert_to_tensor(np.full(3, self.leaf, "float32"))]


def test_after_each_save_four_steps_and_then_one_in_200_times_its_cost(tmp_path):
    clocked = Clocked(tmp_path)
    clocked.train(range(1, 451), saves=[50])
    # 200 times half a second are 100 steps; the one after them is digested.
    assert clocked.digested == [1, 2, 3, 4, 51, 52, 53, 54, 155, 256, 357]


def test_digests_take_half_a_percent_of_the_time(tmp_path):
    clocked = Clocked(tmp_path)
    clocked.train(range(1, 5))
    began, before = clocked.now, len(clocked.digested)
    clocked.train(range(5, 20_001))
    cost = COST * (len(clocked.digested) - before)
    assert 0.004 < cost / (clocked.now - began) <= 0.005


def test_a_resume_digests_what_the_killed_attempt_did(tmp_path):
    """Whatever its own clock says."""
    left = Clocked(tmp_path)
    left.train(range(1, 201))
    resumed = Clocked(tmp_path, 100, compares=True)
    resumed.train(range(101, 201))
    assert left.digested == [1, 2, 3, 4, 105]
    assert resumed.digested == [101, 102, 103, 104, 105]
    assert resumed.count == 5


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ({}, 2),
        ({"compares": False}, 0),
        ({"part": Part(0, 2, 2)}, 0),
        ({"begin": 4}, 0),
    ],
    ids=["alike", "not to be compared", "more processes", "nothing left"],
)
def test_what_is_comparable(tmp_path, given, count):
    Clocked(tmp_path).train(range(1, 5))
    assert Clocked(tmp_path, **{"begin": 2, "compares": True} | given).count == count


def test_a_difference_that_only_the_last_digest_shows_is_found(tmp_path):
    Clocked(tmp_path).train(range(1, 5))
    resumed = Clocked(tmp_path, 2, compares=True)
    resumed.train([3])
    resumed.leaf = 2.0
    resumed.train([4])
    with pytest.raises(
        NotExactError, match="weights differ, and no loss shows by how much"
    ):
        resumed.train([5])


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        (math.nan, -math.nan, None),
        (math.inf, math.inf, None),
        (math.inf, 1.0, "differs by 100%"),
        (math.nan, 1.0, "differs by 100%"),
        (-math.inf, math.inf, "differs by 100%"),
        (0.0, -0.0, "differs by 100%"),
        (1.0, 1.0 + 2**-40, "differs by 9e-13 of itself"),
        (2.0, 1.9, "differs by 5%"),
    ],
)
def test_losses_of_any_size_are_compared(tmp_path, before, now, words):
    Clocked(tmp_path).witness.logged(1, {"took": 3.0, "loss": before})
    resumed = Clocked(tmp_path, compares=True)
    resumed.witness.logged(1, {"took": 4.0, "loss": now})
    with pytest.raises(NotExactError, match=words) if words else nullcontext():
        resumed.train([1, 2])


@pytest.mark.parametrize("value", ["mse", None, [1.0]], ids=repr)
def test_what_is_logged_and_is_no_number_is_not_compared(tmp_path, value):
    clocked = Clocked(tmp_path)
    clocked.witness.logged(1, {"loss": value})
    clocked.train(range(1, 20))
    assert Clocked(tmp_path, compares=True).count == 4


def test_an_attempt_that_differs_leaves_nothing_for_the_next(tmp_path):
    left = Clocked(tmp_path)
    left.train(range(1, 7))
    left.witness.logged(7, {"loss": 7.0})
    left.train([7])
    other = Clocked(tmp_path, 2, compares=True)
    other.train([3, 4])
    other.witness.logged(5, {"loss": 0.5})  # of which the first one left nothing
    other.train([5, 6])
    other.witness.logged(7, {"loss": 0.7})
    with pytest.raises(NotExactError, match=r"the loss differs by 90%"):
        other.train([7])
    again = Clocked(tmp_path, 2, compares=True)
    again.train([3, 4])
    again.witness.logged(5, {"loss": 5.0})
    again.train([5, 6])
    again.witness.logged(7, {"loss": 7.0})
    again.train([7, 8])
    assert counts(tmp_path) == [5]


def test_the_number_named_loss_counts_before_others(tmp_path):
    for number, begin in enumerate((0, 2)):
        clocked = Clocked(tmp_path, begin, compares=bool(number))
        clocked.train(range(begin + 1, 3))
        clocked.witness.logged(3, {"a_loss_in_seconds": float(number), "loss": 1.0})
        clocked.train([3, 4, 5])
    assert counts(tmp_path) == [2]


def test_batches_of_which_no_state_is_compared_do_not_count(tmp_path):
    for begin in (0, 2):
        clocked = Clocked(tmp_path, begin, compares=begin > 0)
        clocked.leaves = lambda step: []
        clocked.witness.drawn(np.ones(3))
        clocked.train(range(begin + 1, 6))
    assert counts(tmp_path) == []


def counts(directory):
    """How many batches repeated, at each resume that was compared."""
    events = read_events(directory, having=['"repeated"'])
    return [each["repeated"] for each in events if each["event"] == "repeated"]
