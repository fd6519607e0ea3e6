"""Where the time of a run went: synthetic events, and numbers computed by hand.

Times are seconds after ``START``. A save's moment is that of its event less the seconds
of the write.
"""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilient.telemetry.goodput import Goodput, goodput

pytestmark = pytest.mark.once

START = 1_700_000_000
KINDS = [  # of attempts
    *("fell back", "rolled back", "started over", "restored", "repeated", "replayed"),
    "training",
    *("interval", "saved", "save failed", "prune failed", "spaced out", "preempted"),
    *("failed", "diverged", "rolled back to", "ended"),
]


class Log:
    """Writes events and heartbeats as attempts do."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def line(self, **event: object) -> None:
        with open(self.directory / "events.jsonl", "a") as file:
            file.write(json.dumps(event) + "\n")

    def __call__(self, when: float, event: str, attempt: str = "a", **fields) -> None:
        who = {"attempt": attempt, "host": "node-" + attempt, "pid": 7}
        self.line(time=START + when, event=event, **who, **fields)

    def heartbeat(self, when: float, attempt: str, phase: str, step: int) -> None:
        beat = sign(when, attempt, phase, step)
        (self.directory / "heartbeat").write_text(json.dumps(beat))


def sign(when: float, attempt: str, phase: str, step: int) -> dict[str, object]:
    progress = {"step": step, "epoch": 0, "batch": step}
    who = {"attempt": attempt, "host": "node", "pid": 7, "directory": "d", "count": 9}
    return {**who, "time": START + when, "phase": phase, **progress}


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def found(log: Log, **expected: float) -> Goodput:
    """The goodput; all its parts must be those expected, the others zero."""
    report = goodput(log.directory)
    nothing = dict.fromkeys(report.parts, 0.0)
    assert report.parts == pytest.approx(nothing | expected)
    return report


def killed_at_70(log: Log) -> None:
    """Trained from 10 to 80, saved step 40 at 48, and died at step 70."""
    log(0, "started", previous=None)
    log(10, "training", step=1)
    log(50, "saved", step=40, seconds=2, stall=1)


def resumed_at_40(log: Log, previous: object) -> None:
    log(100, "started", "b", previous=previous)
    log(104, "restored", "b", step=40, seconds=3)
    log(106, "replayed", "b", step=40, seconds=2)
    log(110, "training", "b", step=41)
    log(130, "saved", "b", step=60, seconds=0, stall=0)
    log(130, "ended", "b", step=60)


def test_a_run_left_alone_starts_trains_and_saves(log):
    log(0, "started", previous=None)
    log(5, "training", step=1)
    log(25, "saved", step=10, seconds=4, stall=1)
    log(45, "saved", step=20, seconds=4, stall=1)
    log(46, "ended", step=20)
    # From 41 on it only waits for the last write.
    report = found(log, starting=5, productive=16 + 19, saving=1 + 5)
    assert (report.whole, report.share) == (46, pytest.approx(35 / 46))
    assert (report.steps, report.lost_steps) == (20, 0)
    (attempt,) = report.attempts
    assert (attempt.started, attempt.ended) == (START, START + 46)
    assert (attempt.outcome, attempt.restored, attempt.step) == ("ended", None, 20)
    assert (attempt.attempt, attempt.host) == ("a", "node-a")


def test_what_came_after_the_save_that_was_restored_is_lost(log):
    killed_at_70(log)
    resumed_at_40(log, sign(80, "a", "training", 70))
    report = found(
        log,
        starting=10 + 1 + 4,
        productive=38 + 20,
        saving=1,
        lost=80 - 48 - 1,
        down=20,
        restoring=3,
        replaying=2,
    )
    assert report.whole == pytest.approx(130)
    assert (report.steps, report.lost_steps) == (60, 30)
    first, second = report.attempts
    assert (first.outcome, first.ended, first.step) == (
        "killed or lost",
        START + 80,
        70,
    )
    assert (second.outcome, second.restored, second.step) == ("ended", 40, 60)


def test_without_a_heartbeat_the_last_event_was_the_last_sign_of_life(log):
    killed_at_70(log)
    resumed_at_40(log, None)
    report = found(
        log,
        starting=10 + 1 + 4,
        productive=38 + 20,
        saving=1,
        lost=50 - 48 - 1,
        down=50,
        restoring=3,
        replaying=2,
    )
    assert (report.steps, report.lost_steps) == (60, 0)


def test_the_heartbeat_tells_how_far_the_last_attempt_came(log):
    """It may be running: whether anything is lost is not known yet."""
    killed_at_70(log)
    log.heartbeat(80, "a", "training", 70)
    report = found(log, starting=10, productive=38 + 31, saving=1)
    assert (report.steps, report.lost_steps) == (70, 0)
    assert report.attempts[0].outcome == "unknown"


@pytest.mark.parametrize("text", ["", "{", '{"attempt": 3}', "[]"])
def test_a_heartbeat_that_cannot_be_read_tells_nothing(log, text):
    killed_at_70(log)
    (log.directory / "heartbeat").write_text(text)
    assert found(log, starting=10, productive=38 + 1, saving=1).steps == 40


def test_the_heartbeat_of_another_attempt_tells_nothing(log):
    killed_at_70(log)
    log.heartbeat(80, "z", "training", 70)
    assert found(log, starting=10, productive=38 + 1, saving=1).steps == 40


def test_a_heartbeat_after_the_last_word_tells_nothing(log):
    log(0, "started")
    log(10, "training", step=1)
    log(20, "failed", step=5)
    log.heartbeat(21, "a", "ended", 5)
    assert found(log, starting=10, productive=10).whole == 20


@pytest.mark.parametrize(
    ("seconds", "lost", "restoring"), [({}, 22, 0), ({"seconds": 2}, 20, 2)]
)
def test_a_rollback_after_a_divergence_loses_what_it_goes_back_over(
    log, seconds, lost, restoring
):
    log(0, "started")
    log(10, "training", step=1)
    log(30, "saved", step=20, seconds=0, stall=0)
    log(50, "diverged", step=35, action="rollback")
    log(52, "rolled back to", step=20, from_step=35, skipped=1, **seconds)
    log(80, "ended", step=50)
    report = found(log, starting=10, productive=20 + 28, lost=lost, restoring=restoring)
    assert (report.steps, report.lost_steps) == (50, 15)
    assert [attempt.outcome for attempt in report.attempts] == ["ended"]


def test_going_back_to_a_step_on_purpose_loses_what_came_after_it(log):
    """And the days after a fit that ended were nobody's."""
    log(0, "started")
    log(10, "training", step=1)
    for when, step in [(20, 10), (30, 20), (40, 30)]:
        log(when, "saved", step=step, seconds=0, stall=0)
    log(40, "ended", step=30)
    log(900_000, "started", "b", previous=sign(41, "a", "ended", 30))
    log(900_000, "rolled back", "b", step=10, discarded=[])
    log(900_001, "restored", "b", step=10, seconds=1)
    log(900_003, "training", "b", step=11)
    log(900_013, "ended", "b", step=20)
    report = found(log, starting=10 + 2, restoring=1, productive=10 + 10, lost=20)
    assert (report.steps, report.lost_steps) == (20, 20)


def test_a_preemption_that_saves_loses_nothing(log):
    log(0, "started")
    log(10, "training", step=1)
    log(63, "saved", step=50, seconds=3, stall=3)
    log(63.5, "preempted", step=50, reason="SIGTERM", saved=True)
    log(90, "started", "b", previous=sign(64, "a", "ended", 50))
    log(92, "restored", "b", step=50, seconds=2)
    log(95, "training", "b", step=51)
    report = found(
        log, starting=10 + 3, productive=50, saving=3.5, restoring=2, down=26.5
    )
    assert [one.outcome for one in report.attempts] == ["preempted", "unknown"]
    assert (report.steps, report.lost_steps) == (51, 0)


def test_a_preemption_that_does_not_save_loses_what_is_done_again(log):
    log(0, "started")
    log(10, "training", step=1)
    log(30, "saved", step=20, seconds=0, stall=0)
    log(60, "preempted", step=50, reason="SIGTERM", saved=False)
    log(60, "started", "b")
    log(60, "restored", "b", step=20, seconds=0)
    report = found(log, starting=10, productive=20, lost=30)
    assert (report.steps, report.lost_steps) == (20, 30)


def test_without_a_checkpoint_everything_is_done_again(log):
    log(0, "started")
    log(10, "training", step=1)
    log(40, "failed", step=30)
    log(50, "started", "b")
    log(55, "training", "b", step=1)
    log(60, "ended", "b", step=5)
    report = found(log, starting=10 + 5, lost=30, down=10, productive=5)
    assert (report.steps, report.lost_steps) == (5, 30)


def test_an_attempt_that_does_not_come_to_train_is_starting(log):
    killed_at_70(log)
    log(100, "started", "b", previous=sign(80, "a", "training", 70))
    log(108, "failed", "b", step=0)
    log(110, "started", "c")
    report = found(log, starting=10 + 8, productive=38 + 31, saving=1, down=20 + 2)
    assert (report.steps, report.lost_steps) == (70, 0)


def test_an_attempt_that_dies_while_it_replays_was_replaying(log):
    killed_at_70(log)
    log(100, "started", "b", previous=sign(80, "a", "training", 70))
    log(103, "restored", "b", step=40, seconds=2)
    log(180, "started", "c", previous=sign(160, "b", "replaying", 40))
    report = found(
        log,
        starting=10 + 1,
        productive=38,
        lost=31,
        saving=1,
        restoring=2,
        replaying=57,
        down=20 + 20,
    )
    assert (report.steps, report.lost_steps) == (40, 30)


def test_a_run_that_is_started_over_counts_from_there(log):
    killed_at_70(log)
    log(100, "started", "b", previous=sign(80, "a", "training", 70))
    log(101, "started over", "b", discarded=["step-00000040"])
    log(105, "training", "b", step=1)
    log(115, "failed", "b", step=10)
    report = found(log, starting=5, productive=10)
    assert (report.steps, report.lost_steps, len(report.attempts)) == (10, 0, 1)


def test_where_a_save_is_not_in_the_events_seconds_are_shared_out_by_steps(log):
    """78 steps from 10 to 49; step 40 is half of them on."""
    log(0, "started")
    log(10, "training", step=1)
    log(49, "started", "b", previous=sign(49, "a", "training", 79))
    log(49, "restored", "b", step=40)
    report = found(log, starting=10, productive=19.5, lost=19.5)
    assert (report.steps, report.lost_steps) == (40, 39)


def test_a_step_that_is_lost_twice_counts_twice(log):
    log(0, "started")
    log(0, "training", step=0)
    log(10, "saved", step=10, seconds=0, stall=0)
    for when, attempt in [(30, "b"), (60, "c")]:
        log(when, "started", attempt)
        log(when, "restored", attempt, step=10, seconds=0)
        log(when, "training", attempt, step=10)
        log(when + 20, "failed", attempt, step=30)
    log(90, "started", "d")
    log(90, "restored", "d", step=10, seconds=0)
    report = found(log, productive=10, lost=40, down=20 + 10 + 10)
    assert (report.steps, report.lost_steps) == (10, 40)


def test_stalls_longer_than_there_was_time_for_are_cut(log):
    log(0, "started")
    log(1, "training", step=1)
    log(10, "saved", step=10, seconds=9, stall=500)
    log(20, "failed", step=12)
    found(log, starting=1, saving=19)


def test_a_stall_is_taken_once(log):
    log(0, "started")
    log(0, "training", step=0)
    log(10, "saved", step=10, seconds=0, stall=2)
    log(20, "saved", step=20, seconds=0, stall=0)
    log(30, "failed", step=30)
    found(log, productive=28, saving=2)


def test_a_save_that_is_told_late_does_not_save_the_steps_after_it(log):
    """Those are trained on, and no wait for a write."""
    log(0, "started")
    log(0, "training", step=0)
    log(12, "diverged", step=12, action="rollback")
    log(13, "saved", step=10, seconds=3, stall=0)
    log(20, "preempted", step=12, saved=False)
    log(20, "started", "b")
    log(20, "restored", "b", step=10, seconds=0)
    report = found(log, productive=10, lost=2 + 8)
    assert (report.steps, report.lost_steps) == (10, 2)


def test_no_attempt_lives_on_after_the_next_one_has_started(log):
    log(0, "started")
    log(10, "training", step=1)
    log(50, "started", "b", previous=sign(900_000, "a", "training", 9))
    report = found(log, starting=10, productive=40)
    assert report.attempts[0].ended == START + 50


def test_time_stands_still_where_a_clock_goes_back(log):
    log(0, "started")
    log(10, "training", step=1)
    log(50, "saved", step=10, seconds=0, stall=0)
    log(45, "interval", seconds=3)
    log(48, "failed", step=15)
    log(30, "started", "b", previous=sign(70, "a", "training", 99))
    log(35, "restored", "b", step=10, seconds=50)
    log(33, "training", "b", step=11)
    report = found(log, starting=10, productive=40, restoring=5)
    assert (report.steps, report.lost_steps) == (11, 5)


@pytest.mark.parametrize(
    "odd", [True, -1, 10**400, 10**30, 1e300, math.nan, "3", [3], {}]
)
def test_foreign_events_and_those_with_odd_values_tell_nothing(log, odd):
    log.line()
    log.line(event="started", attempt="x", time=odd)
    log.line(event="started", attempt=[odd], time=START)
    log.line(event=odd, attempt="y", time=START)
    log(0, "supervising", "s")
    log.line(event="started", attempt="z", time=START, host=[odd], pid=1)
    log.line(event="started", attempt="z", time=START, host="h", pid=[odd])
    log(0, "started", "z", previous=odd)
    log(0, "started", previous=None)
    log(1, "launched", "s")
    log(10, "training", step=1)
    with open(log.directory / "events.jsonl", "a") as file:
        file.write('[]\n3\n\n{"event": "sav\n\x00\xff\n')
    log(30, "saved", step=20, seconds=0, stall=0)
    log(31, "saved", step=odd, seconds=odd, stall=odd)
    log(40, "rolled back to", step=odd, from_step=odd, seconds=odd)
    log(41, "ended", step=odd)
    log(50, "failed", step=None, message="odd")
    log(999, "exited", "s", status=odd)
    report = found(log, starting=10, productive=40)
    assert [attempt.attempt for attempt in report.attempts] == ["a"]
    assert (report.steps, report.attempts[0].outcome) == (20, "failed")


@pytest.mark.parametrize("missing", [True, False])
def test_where_there_are_no_events_all_is_zero(tmp_path, missing):
    report = found(Log(tmp_path / "missing" if missing else tmp_path))
    assert (report.whole, report.share, report.steps, report.attempts) == (0, 0, 0, ())


@pytest.mark.parametrize("kind", ["ended", "preempted", "failed", "diverged"])
def test_an_attempt_tells_how_it_ended(log, kind):
    log(0, "started")
    log(1, "training", step=1)
    log(2, kind, step=2, action="stop")
    assert goodput(log.directory).attempts[0].outcome == kind


def test_all_of_it_is_json(log):
    killed_at_70(log)
    resumed_at_40(log, sign(80, "a", "training", 70))
    report = goodput(log.directory)
    data = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert data["goodput"] == report.share == pytest.approx(58 / 130)
    assert data["seconds"] == {"whole": report.whole, **report.parts}
    assert data["steps"] == {"trained": 90, "lost": 30, "surviving": 60}
    assert data["attempts"][1] == {
        "attempt": "b",
        "host": "node-b",
        "started": START + 100,
        "ended": START + 130,
        "outcome": "ended",
        "restored": 40,
        "repeated": None,
        "step": 60,
    }


def test_batches_that_repeated_belong_to_the_attempt_that_compared_them(log):
    killed_at_70(log)
    resumed_at_40(log, sign(80, "a", "training", 70))
    log(130, "repeated", "b", step=70, repeated=30)
    assert [each.repeated for each in goodput(log.directory).attempts] == [None, 30]


def test_the_share_of_a_run_without_time_is_zero(log):
    log(0, "started")
    assert goodput(log.directory).share == 0.0


seconds = st.floats(0, 1e5)
steps = st.integers(0, 50)
happenings = st.fixed_dictionaries(
    {"event": st.sampled_from(KINDS)},
    optional={
        "step": steps,
        "from_step": steps,
        "seconds": seconds,
        "stall": seconds,
        "action": st.sampled_from(["stop", "rollback"]),
    },
)
# Per attempt: seconds since the one before, its events with the seconds before each,
# and the seconds to a last sign of life with its phase and step.
attempts = st.lists(
    st.tuples(
        seconds,
        st.lists(st.tuples(seconds, happenings), max_size=8),
        st.none() | st.tuples(seconds, st.sampled_from(["replaying", "saving"]), steps),
    ),
    max_size=6,
)


def last_word(events: list[dict]) -> str | None:
    words = [
        event["event"]
        for event in events
        if event["event"] in ("ended", "preempted", "failed")
        or (event["event"] == "diverged" and event.get("action") != "rollback")
    ]
    return words[-1] if words else None


def require_spans(report: Goodput) -> None:
    """Each second of each part has its place in one of the attempts' lives."""
    sums = dict.fromkeys(report.parts, 0.0)
    for span in report.spans:
        assert span.begin < span.end
        sums[span.part] += span.end - span.begin
        if span.part != "down":
            attempt = report.attempts[span.attempt]
            assert attempt.started - 1e-3 <= span.begin
            assert span.end <= attempt.ended + 1e-3
    assert sums == pytest.approx(report.parts, rel=1e-6, abs=1e-2)


@settings(max_examples=200, deadline=None)
@given(attempts)
def test_the_parts_of_any_history_sum_to_its_time(tmp_path_factory, histories):
    """Told twice: by the parts, and by the clock from the first start to the end."""
    log = Log(tmp_path_factory.mktemp("run"))
    now = idle = first = 0.0
    previous, ended = None, False
    for number, (gap, events, death) in enumerate(histories):
        name = f"attempt {number}"
        idle += gap if ended else 0.0
        started = now = now + gap
        log(now, "started", name, previous=previous)
        over = any(event["event"] == "started over" for _, event in events)
        if over or number == 0:
            first, idle = started, 0.0
        for wait, event in events:
            now += wait
            log(now, attempt=name, **event)
        word, previous = last_word([event for _, event in events]), None
        ended = word == "ended"
        if death is not None and word is None:
            now += death[0]
            previous = sign(now, name, *death[1:])
    if previous is not None:
        (log.directory / "heartbeat").write_text(json.dumps(previous))
    report = goodput(log.directory)
    assert all(part >= 0 for part in report.parts.values())
    assert report.whole == pytest.approx(now - first - idle, rel=1e-9, abs=1e-3)
    assert 0 <= report.share <= 1
    assert 0 <= report.steps <= 50
    assert report.lost_steps >= 0
    require_spans(report)


junk = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
wild = st.fixed_dictionaries(
    {
        "event": st.sampled_from(["started", *KINDS]) | junk,
        "attempt": st.sampled_from("abc") | junk,
        "time": st.floats(0, 1e6) | junk,
        "host": st.just("node") | junk,
        "pid": st.integers(0, 9) | junk,
    },
    optional={
        **dict.fromkeys(("step", "from_step"), steps | junk),
        **dict.fromkeys(("seconds", "stall"), seconds | junk),
        "action": junk,
        "previous": junk
        | st.fixed_dictionaries(
            {"attempt": st.sampled_from("abc") | junk, "time": seconds | junk},
            optional={"step": steps | junk, "phase": junk},
        ),
    },
)


@settings(max_examples=200, deadline=None)
@given(st.lists(wild, max_size=20))
def test_no_events_however_odd_break_the_report(tmp_path_factory, events):
    """Its parts are the lives of its attempts and the gaps between them."""
    log = Log(tmp_path_factory.mktemp("run"))
    for event in events:
        log.line(**event)
    report = goodput(log.directory)
    json.dumps(report.to_json(), allow_nan=False)
    whole, before = 0.0, None
    for attempt in report.attempts:
        assert attempt.started <= attempt.ended
        whole += attempt.ended - attempt.started
        if before is not None and before.outcome != "ended":
            whole += max(0.0, attempt.started - before.ended)
        before = attempt
    assert all(part >= 0 for part in report.parts.values())
    assert report.whole == pytest.approx(whole, rel=1e-6, abs=1e-3)
    assert 0 <= report.share <= 1
    require_spans(report)


def test_an_attempt_that_was_set_back_for_another_process(tmp_path):
    lines = [
        {"event": "started", "time": 100.0},
        {"event": "training", "time": 101.0, "step": 1},
        {"event": "diverged", "time": 110.0, "step": 9, "action": "rollback"},
        {"event": "rolled back to", "time": 111.0, "step": 6, "seconds": 1.0},
    ]
    who = {"attempt": "a", "host": "h", "pid": 7}
    text = "\n".join(json.dumps(who | event) for event in lines)
    (tmp_path / "events.jsonl").write_text(text + "\n")
    (attempt,) = goodput(tmp_path).attempts
    assert attempt.outcome == "rolled back"
