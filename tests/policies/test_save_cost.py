"""What saves cost, from the moments that the training reports."""

import pytest

from resilient.policies import Cost
from resilient.policies.interval import CostMeter
from resilient.progress import Progress

pytestmark = pytest.mark.once


def at(step, batches=100):
    return Progress(step, step // batches, step % batches)


def train(meter, now, first, last, pace, *, busy=False):
    """Report batches ``first`` to ``last``, one each ``pace`` seconds; when it ends."""
    for step in range(first, last + 1):
        now += pace
        meter.batch(now, at(step), busy=busy)
    return now


def save(meter, now, step, *, stall, write):
    meter.write = write
    meter.saved(now + stall, at(step), stall)
    return now + stall


def test_nothing_is_known_before_the_first_save_is_over():
    meter = CostMeter()
    now = train(meter, 0.0, 1, 10, 1.0)
    now = save(meter, now, 10, stall=0.5, write=4.0)
    assert meter.cost is None
    assert meter.slowest is None
    train(meter, now, 11, 13, 1.0, busy=True)
    assert meter.cost is None


def test_a_write_that_slows_nothing_costs_only_the_snapshot():
    meter = CostMeter()
    now = train(meter, 0.0, 1, 10, 1.0)
    now = save(meter, now, 10, stall=0.5, write=4.0)
    now = train(meter, now, 11, 13, 1.0, busy=True)
    train(meter, now, 14, 14, 1.0)
    assert meter.cost == Cost(pytest.approx(0.5), 4.0)
    assert meter.slowest == 4.5


def test_batches_that_take_longer_meanwhile_are_a_cost():
    """Four batches of 1.5 s in place of 1 s."""
    meter = CostMeter()
    now = train(meter, 0.0, 1, 10, 1.0)
    now = save(meter, now, 10, stall=0.5, write=6.0)
    now = train(meter, now, 11, 13, 1.5, busy=True)
    train(meter, now, 14, 14, 1.5)
    assert meter.cost == Cost(pytest.approx(0.5 + 2.0), 6.0)


def test_no_more_than_the_write_is_blamed_on_it():
    """The batch after the save took a minute, which a write of 2 s cannot have cost."""
    meter = CostMeter()
    now = train(meter, 0.0, 1, 10, 1.0)
    now = save(meter, now, 10, stall=0.5, write=2.0)
    train(meter, now, 11, 11, 60.0)
    assert meter.cost == Cost(pytest.approx(2.5), 2.0)


def test_without_a_pace_to_compare_with_the_whole_write_counts():
    meter = CostMeter()
    now = save(meter, 0.0, 1, stall=0.5, write=3.0)
    train(meter, now, 2, 4, 1.0)
    assert meter.cost == Cost(3.5, 3.0)


def test_validation_between_epochs_is_no_pace():
    """100 s of validation between the batches 100 and 101 are not the batches' pace."""
    meter = CostMeter()
    now = train(meter, 0.0, 90, 99, 1.0)
    meter.batch(now + 100.0, at(100), busy=False)
    now = save(meter, now + 100.0, 100, stall=0.5, write=5.0)
    now = train(meter, now, 101, 103, 2.0, busy=True)
    train(meter, now, 104, 104, 2.0)
    assert meter.cost == Cost(pytest.approx(0.5 + 4.0), 5.0)


def test_one_save_that_is_far_off_does_not_count():
    meter, now = CostMeter(), 0.0
    for number, stall in enumerate([0.5, 0.5, 50.0, 0.5, 0.5]):
        first = 20 * number + 1
        now = train(meter, now, first, first + 9, 1.0)
        now = save(meter, now, first + 9, stall=stall, write=4.0)
        now = train(meter, now, first + 10, first + 19, 1.0)
    assert meter.cost == Cost(pytest.approx(0.5), 4.0)
    assert meter.slowest == 54.0
