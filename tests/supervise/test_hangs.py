"""How long silence may last; time is an argument."""

import pytest

from resilient.supervise.hangs import DEFAULT_STARTUP, HangLimit
from resilient.telemetry.heartbeat import Beat

pytestmark = pytest.mark.once


def beat(count, phase="training", epoch=0, attempt="a"):
    return Beat(attempt, "host", 1, "/runs", 0.0, count, phase, count, epoch, count)


class Watched:
    """A process that is looked at, and the clock of whoever looks."""

    def __init__(self, fixed=None, startup=None):
        self.limit = HangLimit(fixed, startup)
        self.now = 1000.0
        self.beat = None
        self.limit.start(self.now)

    def signs(self, count, every, phase="training", epoch=0):
        for _ in range(count):
            self.now += every
            number = 1 if self.beat is None else self.beat.count + 1
            self.beat = beat(number, phase, epoch)
            assert self.limit.observe(self.now, self.beat) is None
        return self

    def silence(self, seconds):
        """Seconds of silence until it is a hang; None if there is none by then."""
        hang = self.limit.observe(self.now + seconds, self.beat)
        return None if hang is None else hang.limit


def test_a_script_that_never_gives_a_sign_is_left_alone():
    assert Watched().silence(1e9) is None
    assert Watched(fixed=5).silence(1e9) is None


def test_a_script_that_never_gives_a_sign_has_the_time_that_the_user_gives_a_start():
    assert Watched(startup=20).silence(20) is None
    assert Watched(startup=20).silence(21) == 20


def test_a_start_has_a_limit_once_there_was_a_sign():
    watched = Watched().signs(1, 5, "starting")
    assert watched.silence(1799) is None
    assert watched.silence(1801) == DEFAULT_STARTUP


def test_until_training_is_known_a_process_has_the_time_of_a_start():
    assert Watched().signs(9, 1).silence(1799) is None


def test_the_limit_is_ten_times_the_longest_silence_once_an_epoch_has_ended():
    watched = Watched().signs(10, 1).signs(1, 30, epoch=1)
    assert watched.silence(299) is None
    assert watched.silence(301) == 300


def test_the_limit_is_a_minute_at_least():
    watched = Watched().signs(10, 0.5).signs(1, 0.5, epoch=1)
    assert watched.silence(59) is None
    assert watched.silence(61) == 60


def test_the_limit_is_five_minutes_at_least_before_an_epoch_has_ended():
    assert Watched().signs(100, 0.5).silence(299) is None
    assert Watched().signs(100, 0.5).silence(301) == 300


def test_each_phase_has_to_be_known():
    """The first batch of a validation may have to be compiled."""
    watched = Watched().signs(50, 1).signs(1, 1, "validating")
    assert watched.silence(1799) is None
    assert watched.signs(9, 1, "validating").silence(301) == 300


def test_saves_and_starts_teach_nothing_and_have_the_time_of_a_start():
    watched = Watched().signs(1, 500, "starting").signs(20, 1)
    watched.signs(1, 1, "saving")
    assert watched.silence(1799) is None
    assert watched.silence(1801) == DEFAULT_STARTUP
    assert watched.signs(1, 1000).silence(301) == 300


def test_what_comes_after_fit_has_no_limit():
    assert Watched().signs(20, 1).signs(1, 1, "ended").silence(1e9) is None


def test_a_fixed_limit():
    watched = Watched(fixed=5).signs(1, 1)
    assert watched.silence(4) is None
    assert watched.silence(6) == 5
    assert watched.signs(1, 1, "saving").silence(1799) is None


def test_zero_finds_no_hangs():
    assert Watched(fixed=0).signs(20, 1).silence(1e9) is None


def test_time_in_which_nobody_looked_does_not_count():
    watched = Watched().signs(20, 1)
    watched.limit.slept(3600)
    assert watched.silence(3600 + 299) is None
    assert watched.silence(3600 + 301) == 300


def test_an_old_sign_is_no_sign():
    watched = Watched().signs(20, 1)
    assert watched.silence(100) is None
    assert watched.limit.silent(watched.now + 100) == 100


def test_a_restarted_process_keeps_what_was_learned():
    watched = Watched().signs(20, 50)
    watched.limit.start(watched.now)
    watched.beat = None
    assert watched.silence(1799) is None  # starting
    assert watched.silence(1801) == DEFAULT_STARTUP
    watched.now += 1500
    watched.beat = beat(1, attempt="b")
    watched.limit.observe(watched.now, watched.beat)
    assert watched.silence(501) == 500  # the start taught nothing


def test_a_limit_that_was_too_short_is_doubled():
    watched = Watched().signs(20, 1)
    watched.limit.relax()
    assert watched.silence(599) is None
    assert watched.silence(601) == 600


def test_a_hang_says_where_and_since_when():
    watched = Watched(fixed=5).signs(3, 1)
    hang = watched.limit.observe(watched.now + 7, watched.beat)
    assert str(hang) == (
        "no heartbeat for 7.0 s in phase 'training' at step 3 (the limit is 5.0 s)"
    )
    assert str(Watched(startup=5).limit.observe(1006.0, None)) == (
        "no heartbeat for 6.0 s since it was started (the limit is 5.0 s)"
    )
