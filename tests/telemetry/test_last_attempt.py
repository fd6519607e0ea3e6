"""How the attempt before this one ended, as a person reads it where a run resumes."""

import json

import pytest

from resilient.telemetry.attempts import LastAttempt, last_attempt, read_attempts
from resilient.training.boundaries import ending

pytestmark = pytest.mark.once

WHO = {"host": "here", "pid": 7}
STARTED = {"time": 100.0, "event": "started", "attempt": "a"}


def told(directory, *events, sign=None, resumed=800, now=1000.0):
    """What is said where ``events`` and the last ``sign`` are all that was left."""
    lines = [json.dumps(event | WHO) + "\n" for event in events]
    (directory / "events.jsonl").write_text("".join(lines))
    if sign is not None:
        beat = {"attempt": "a", "directory": "/runs/x", "time": 995.0, "count": 9}
        where = {"phase": "training", "step": 821, "epoch": 2, "batch": 196}
        (directory / "heartbeat").write_text(json.dumps(WHO | beat | where | sign))
    last = last_attempt(read_attempts(directory))
    return None if last is None else ending(last, resumed, now)


def test_nothing_is_told_where_there_was_no_attempt(tmp_path):
    assert last_attempt(read_attempts(tmp_path)) is None
    assert told(tmp_path, {**STARTED, "event": "saved"}) is None


def test_a_kill_is_told_by_the_last_sign_of_life(tmp_path):
    assert told(tmp_path, STARTED, sign={}) == (
        "The last attempt was killed or lost 5 s ago at about step 821: about 21 "
        "batches will be trained again"
    )
    assert told(tmp_path, STARTED, sign={"step": 801}).endswith(
        "1 batch will be trained again"
    )


def test_the_sign_of_another_attempt_tells_nothing(tmp_path):
    line = told(tmp_path, STARTED, sign={"attempt": "b"})
    assert line == "The last attempt was killed or lost 15 min ago"


@pytest.mark.parametrize(
    ("event", "says"),
    [
        ({"event": "ended", "step": 800}, "ended 2 s ago at step 800"),
        ({"event": "preempted", "step": 800}, "was asked to stop 2 s ago at step 800"),
        (
            {"event": "failed", "step": 810, "error": "ValueError"},
            "failed (ValueError) 2 s ago at step 810: 10 batches will be trained again",
        ),
        ({"event": "failed", "step": 0}, "failed 2 s ago"),
        (
            {"event": "failed", "step": 0, "error": "\x1b[2J" + "x" * 999},
            "failed (\\u001b[2J" + "x" * 96 + ") 2 s ago",
        ),
        (
            {"event": "diverged", "action": "stop", "step": 810},
            "diverged 2 s ago at step 810: 10 batches will be trained again",
        ),
        (
            {"event": "diverged", "action": "rollback", "step": 810},
            "was killed or lost",
        ),
    ],
)
def test_a_last_word_is_told(tmp_path, event, says):
    """As text, however long it is and whatever is in it."""
    line = told(tmp_path, STARTED, {**STARTED, "time": 998.0, **event})
    assert line.startswith(f"The last attempt {says}")


def test_only_the_last_attempt_counts(tmp_path):
    ended = {**STARTED, "event": "ended", "step": 5}
    again = {**STARTED, "attempt": "b", "time": 990.0}
    line = told(tmp_path, STARTED, ended, again)
    assert line == "The last attempt was killed or lost 10 s ago"


@pytest.mark.parametrize(
    ("seconds", "says"),
    [(0.2, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (2e5, "2 d")],
)
def test_how_long_ago_is_told_in_one_unit(seconds, says):
    last = LastAttempt("ended", 0.0, None, certain=True)
    assert ending(last, 0, seconds) == f"The last attempt ended {says} ago"
