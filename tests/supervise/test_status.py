"""The status line."""

import pytest

from resilient.supervise import status
from resilient.telemetry.heartbeat import Beat

pytestmark = pytest.mark.once


def beat(step, attempt="a"):
    return Beat(attempt, "host", 1, "/runs", 0.0, step, "training", step, 2, step)


def test_speed_is_that_of_the_last_seconds():
    speed = status.Speed()
    assert speed.observe(0.0, beat(0)) is None
    assert speed.observe(2.0, beat(10)) == 5
    assert speed.observe(4.0, beat(10)) == 2.5
    for second in range(100, 130):
        last = speed.observe(float(second), beat(3 * second))
    assert last == 3


def test_speed_starts_again_with_an_attempt():
    speed = status.Speed()
    speed.observe(0.0, beat(0))
    assert speed.observe(1.0, beat(100)) == 100
    assert speed.observe(2.0, beat(50, "b")) is None
    assert speed.observe(3.0, beat(60, "b")) == 10
    assert speed.observe(4.0, beat(30, "b")) is None  # it rolled back


def test_the_status_line():
    assert status.running(1, None, None, 3.0, told=False) == (
        "attempt 1 · no heartbeat yet · 0 restarts"
    )
    assert status.running(2, beat(1200), 34.56, 0.4, told=True) == (
        "attempt 2 · training · step 1,200 · epoch 3 · 34.6 steps/s · heartbeat 0 s ago"
        " · 1 restart · told to stop"
    )
