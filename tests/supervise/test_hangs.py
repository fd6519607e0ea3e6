"""How long silence may last; time is an argument."""

import pytest

from resilient.supervise.options import HALF_AN_HOUR, Options
from resilient.supervise.processes import HangLimit
from resilient.telemetry.heartbeat import Beat

pytestmark = pytest.mark.once


def beat(count, phase):
    return Beat("a", "host", 1, "/runs", 0.0, count, phase, count, 0, count)


class Watched:
    """A process that is looked at, and the clock of whoever looks."""

    def __init__(self, **options):
        self.limit = HangLimit(Options(["train"], **options))
        self.now = 1000.0
        self.beat = None
        self.limit.start(self.now)

    def signs(self, count, every, phase="training"):
        for _ in range(count):
            self.now += every
            number = 1 if self.beat is None else self.beat.count + 1
            self.beat = beat(number, phase)
            assert self.limit.observe(self.now, self.beat) is None
        return self

    def silence(self, seconds):
        """What is said after seconds of silence; None if it is no hang."""
        return self.limit.observe(self.now + seconds, self.beat)


def test_a_script_that_never_gives_a_sign_is_left_alone():
    assert Watched().silence(1e9) is None
    assert Watched(hang_timeout=5).silence(1e9) is None


def test_a_script_that_never_gives_a_sign_has_the_time_that_the_user_gives_a_start():
    assert Watched(startup_timeout=20).silence(20) is None
    assert "(the limit is 20.0 s)" in Watched(startup_timeout=20).silence(21)


@pytest.mark.parametrize("phase", ["training", "validating", "replaying", "saving"])
def test_half_an_hour_of_silence_is_a_hang_whatever_came_before(phase):
    watched = Watched().signs(50, 0.1).signs(1, 1, phase)
    assert watched.silence(HALF_AN_HOUR - 1) is None
    assert f"in phase {phase!r} at step 51" in watched.silence(HALF_AN_HOUR + 1)


def test_the_next_start_has_a_limit_once_there_was_a_sign():
    watched = Watched().signs(1, 5)
    watched.limit.start(watched.now)
    watched.beat = None
    assert watched.silence(1799) is None
    assert "since it was started (the limit is 1,800.0 s)" in watched.silence(1801)


def test_what_comes_after_fit_has_no_limit():
    assert Watched().signs(20, 1).signs(1, 1, "ended").silence(1e9) is None


def test_a_limit_of_the_user_holds_while_training_and_not_for_saves():
    watched = Watched(hang_timeout=5).signs(1, 1)
    assert watched.silence(4) is None
    assert watched.silence(7) == (
        "no heartbeat for 7.0 s in phase 'training' at step 1 (the limit is 5.0 s)"
    )
    assert watched.signs(1, 1, "saving").silence(1799) is None


def test_zero_finds_no_hangs():
    assert Watched(hang_timeout=0).signs(20, 1).silence(1e9) is None


def test_an_old_sign_is_no_sign():
    watched = Watched(hang_timeout=150).signs(20, 1)
    assert watched.silence(100) is None
    assert watched.silence(200) is not None
