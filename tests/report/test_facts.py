"""The facts of a report on a run: faults, metrics, and whether it is alive."""

import math
import os
import socket
import time

import pytest
from support.reported import logs, write_events

from resilient.report.facts import read_facts, state_of
from resilient.telemetry.heartbeat import Beat

pytestmark = pytest.mark.once

START = 1_700_000_000


def facts_of(directory, *lines):
    write_events(directory, START, list(lines))
    return read_facts(directory)


def test_a_directory_without_events_has_no_facts(tmp_path):
    assert read_facts(tmp_path) is None


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
        ("killed or lost", "", 3),
        ("gave up", "Gave up: enough", None),
    ]


def test_metrics_that_are_not_finite_stay_what_they_are(tmp_path):
    fields = {"step": 1, "logs": {"loss": "nan", "a": "-inf", "b": 1e308}}
    facts = facts_of(tmp_path, ("a", 0, "started", {}), ("a", 1, "metrics", fields))
    assert math.isnan(facts.last_metrics["loss"])
    assert facts.to_json()["metrics"] == {"loss": "nan", "a": "-inf", "b": 1e308}


def test_the_loss_is_first_and_validation_beside_its_metric(tmp_path):
    fields = {"step": 1, "logs": dict.fromkeys(("val_a", "a", "val_loss", "loss"), 1)}
    facts = facts_of(tmp_path, ("a", 0, "started", {}), ("a", 1, "metrics", fields))
    assert list(facts.metrics) == ["loss", "val_loss", "a", "val_a"]


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
        ("killed or lost", None, "killed or lost"),
        ("unknown", None, "not known"),
        ("unknown", beat(1, GONE), "alive"),
        ("unknown", beat(9, GONE), "killed or lost"),
        ("unknown", beat(9, os.getpid()), "alive"),
        ("unknown", beat(9, GONE, "elsewhere"), "alive"),
        ("unknown", beat(99, GONE, "elsewhere"), "silent"),
    ],
)
def test_a_run_is_alive_silent_or_killed(outcome, sign, state):
    assert state_of("a", outcome, sign, START) == state


def test_the_state_of_a_run_is_that_of_now(tmp_path):
    facts = facts_of(
        tmp_path,
        ("a", time.time() - START, "started", {}),
        ("a", time.time() - START, "metrics", {"step": 1, **logs(1.0, 2.0)}),
    )
    assert facts.state == "not known"
    assert facts.epoch == 0
