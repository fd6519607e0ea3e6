"""What is known of a process of the script once it has ended."""

import json
import sys

import pytest

from resilient.prove.recorded import Place
from resilient.prove.script import Script

pytestmark = pytest.mark.once

WHO = {"attempt": "one", "host": "here", "pid": 1}
# Writes its arguments, each an event, as training would.
WRITE = """
import json, os, pathlib, sys, time
directory = pathlib.Path(os.environ["RESILIENT_SCRATCH"], "runs")
for told in sys.argv[1:]:
    run, event = json.loads(told)
    (directory / run).mkdir(parents=True, exist_ok=True)
    event["time"] = time.time()
    with open(directory / run / "events.jsonl", "a") as file:
        file.write(json.dumps(event) + chr(10))
"""


def ended(directory, *events):
    """How a script ends with these events: the run, the event and the step."""
    lines = [
        json.dumps(
            (run, {"event": name, "step": step, "epoch": 0, "batch": step} | WHO)
        )
        for run, name, step in events
    ]
    script = Script([sys.executable, "-c", WRITE, *lines], directory, {}, {})
    found = script.run()
    assert found.status == 0, found.last_lines
    return found


def test_a_resume(tmp_path):
    first = ended(tmp_path, ("a", "started", 0), ("a", "digest", 3))
    assert (first.restored, first.went_on) == ({}, frozenset())
    assert first.reached == Place("runs/a", 3, 0, 3)
    events = ("a", "started", 0), ("a", "restored", 2), ("a", "digest", 3)
    then = ended(tmp_path, *events)
    assert then.restored == {"runs/a": Place("runs/a", 2, 0, 2)}
    assert then.went_on == {"runs/a"}


def test_a_finished_run_that_is_only_loaded(tmp_path):
    events = ("a", "started", 0), ("a", "restored", 9), ("a", "ended", 9)
    found = ended(tmp_path, *events, ("b", "started", 0), ("b", "digest", 1))
    assert found.restored == {"runs/a": Place("runs/a", 9, 0, 9)}
    assert not found.went_on


def test_a_run_that_failed_after_its_resume_and_started_over(tmp_path):
    events = ("a", "started", 0), ("a", "restored", 9), ("a", "failed", 9)
    again = ("a", "started", 0), ("a", "digest", 0), ("a", "digest", 10)
    assert not ended(tmp_path, *events, *again).went_on


def test_a_rollback_is_no_resume(tmp_path):
    found = ended(
        tmp_path,
        *(("a", "started", 0), ("a", "digest", 0), ("a", "digest", 1)),
        *(("a", "restored", 0), ("a", "digest", 1)),
    )
    assert (found.restored, found.went_on) == ({}, frozenset())


def test_nothing_was_trained(tmp_path):
    found = ended(tmp_path)
    assert (found.reached, found.restored) == (None, {})
