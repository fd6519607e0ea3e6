"""What a report tells of a run: faults, changes, saves; and what is drawn of it."""

import math
import os
import socket
import time

import pytest
from support.checkpoint_samples import filled, save
from support.reported import BEFORE, killed_and_resumed, logs, write_events

from resilient.report.bars import MOST_ATTEMPTS, timeline
from resilient.report.curves import curves
from resilient.report.facts import Logged, read_facts
from resilient.storage.store import Store
from resilient.telemetry.accounting import Span
from resilient.telemetry.heartbeat import Beat
from resilient.telemetry.liveness import state_of

pytestmark = pytest.mark.once

START = 1_700_000_000


def facts_of(directory, *lines):
    write_events(directory, START, list(lines))
    return read_facts(Store(directory))


def test_a_directory_without_events_has_no_facts(tmp_path):
    assert read_facts(Store(tmp_path)) is None


def test_a_fault_has_the_reason_of_the_supervisor_or_its_own_or_none(tmp_path):
    failed = {"step": 9, "error": "ValueError", "message": "no"}
    facts = facts_of(
        tmp_path,
        ("s", 0, "exited", {"kind": "not started", "why": "it was not found"}),
        ("a", 1, "started", {}),
        ("a", 2, "fell back", {"checkpoint": "step-9", "reason": "a flipped bit"}),
        ("a", 3, "failed", failed),
        ("b", 4, "started", {}),
        ("s", 6, "exited", {"kind": "hung", "why": "no sign for 60 s"}),
        ("c", 7, "started", {}),
        ("d", 8, "started", {}),
        ("s", 9, "gave up", {"kind": "killed", "why": "Gave up: enough"}),
    )
    assert [(f.kind, f.why, f.attempt) for f in facts.faults] == [
        ("not started", "it was not found", None),
        ("fell back", "a flipped bit", 1),
        ("failed", "ValueError: no", 1),
        ("hung", "no sign for 60 s", 2),
        ("died", "", 3),
        ("gave up", "Gave up: enough", None),
    ]


def test_changes_are_told_between_attempts_that_recorded_them(tmp_path):
    one, two = {"environment": BEFORE}, {"environment": BEFORE | {"torch": "3"}}
    facts = facts_of(
        tmp_path,
        ("a", 0, "started", {}),  # of an older version
        ("b", 1, "started", one),
        ("c", 2, "started", one | {"host": "other"}),
        ("d", 3, "started", {"host": "other"}),
        ("e", 4, "started", two | {"host": "other", "processes": 2}),
    )
    found = [(c.attempt, c.name, c.before, c.after) for c in facts.changes]
    assert found == [
        (3, "host", "node-7", "other"),
        (5, "torch", "2.12.0", "3"),
        (5, "processes", "", "2"),
    ]


def test_where_events_have_no_metrics_those_of_checkpoints_are_there(tmp_path):
    save(filled(tmp_path), 40, metrics={"loss": 0.5})
    facts = facts_of(tmp_path, ("a", 0, "started", {}))
    assert facts.logged == [Logged(-1, 40, 4, 0, {"loss": 0.5})]


def test_metrics_that_are_not_finite_stay_what_they_are(tmp_path):
    fields = {"step": 1, "logs": {"loss": "nan", "a": "-inf", "b": 1e308}}
    facts = facts_of(tmp_path, ("a", 0, "started", {}), ("a", 1, "metrics", fields))
    assert math.isnan(facts.last_metrics["loss"])
    assert facts.to_json()["metrics"] == {"loss": "nan", "a": "-inf", "b": 1e308}
    drawn = {curve.name: curve for curve in curves(facts.logged)}
    assert [len(drawn[name].points) for name in ("loss", "a", "b")] == [0, 0, 0]
    assert [drawn[name].odd for name in ("loss", "a", "b")] == [1, 1, 1]


def test_a_million_spans_become_few_bars_that_cover_the_same_time():
    parts = ("productive", "saving", "productive")
    spans = [Span(0, parts[i % 3], float(i), float(i + 1)) for i in range(1_000_000)]
    found = timeline(spans)
    assert 1 <= len(found.bars) <= 1300
    assert found.bars[0].begin == 0
    assert found.bars[-1].end == 1_000_000
    assert found.narrowest > 1
    assert {bar.part for bar in found.bars} == {"productive"}


def test_only_the_last_of_very_many_attempts_are_drawn():
    spans = [Span(i, "productive", float(i), i + 0.5) for i in range(1000)]
    found = timeline(spans)
    assert found.first == 1000 - MOST_ATTEMPTS
    assert len(found.bars) == MOST_ATTEMPTS


def test_bars_that_are_wide_enough_are_drawn_as_they_are(tmp_path):
    killed_and_resumed(tmp_path, START)
    spans = read_facts(Store(tmp_path)).spans()[:3]
    assert list(timeline(spans).bars) == spans
    assert timeline([]).bars == ()


def test_a_long_curve_keeps_its_ends_and_its_extremes():
    logged = [Logged(0, i, 0, 0, {"loss": float(i % 7)}) for i in range(50_000)]
    logged[777] = Logged(0, 777, 0, 0, {"loss": -5.0})
    (curve,) = curves(logged)
    assert len(curve.points) <= 1001
    assert min(point.value for point in curve.points) == -5.0
    assert curve.points[-1].step == 49_999
    assert [p.step for p in curve.points] == sorted(p.step for p in curve.points)


def beat(age, pid, host=None):
    """A sign of life, some seconds old."""
    where = {"host": host or socket.gethostname(), "pid": pid, "directory": "d"}
    place = {"phase": "training", "step": 1, "epoch": 0, "batch": 1}
    return Beat(attempt="a", time=START - age, count=1, **where, **place)


GONE = 2**22 + 1  # above what Linux gives


@pytest.mark.parametrize(
    ("outcome", "sign", "state"),
    [
        ("ended", None, "ended"),
        ("died", None, "dead"),
        ("unknown", None, "not known"),
        ("unknown", beat(1, GONE), "alive"),
        ("unknown", beat(9, GONE), "dead"),
        ("unknown", beat(9, os.getpid()), "alive"),
        ("unknown", beat(9, GONE, "elsewhere"), "alive"),
        ("unknown", beat(99, GONE, "elsewhere"), "silent"),
    ],
)
def test_a_run_is_alive_silent_or_dead(outcome, sign, state):
    assert state_of("a", outcome, sign, START) == state


def test_the_state_of_a_run_is_that_of_now(tmp_path):
    facts = facts_of(
        tmp_path,
        ("a", time.time() - START, "started", {}),
        ("a", time.time() - START, "metrics", {"step": 1, **logs(1.0, 2.0)}),
    )
    assert facts.state == "not known"
    assert facts.epoch == 0
