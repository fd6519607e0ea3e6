"""An attempt that was killed is called the same everywhere."""

import signal

import pytest
from support.reported import killed_and_resumed, write_events

from resilient.cli.main import main
from resilient.supervise.evidence import Evidence
from resilient.supervise.failures import classify
from resilient.telemetry.attempts import last_attempt, read_attempts
from resilient.telemetry.events import KILLED
from resilient.telemetry.goodput import goodput
from resilient.training.boundaries import ending

pytestmark = pytest.mark.once

START = 1_700_000_000


def test_a_killed_attempt_is_called_killed_or_lost_everywhere(tmp_path, capsys):
    assert KILLED == "killed or lost"
    run, page = tmp_path / "run", tmp_path / "page.html"
    killed_and_resumed(run, START)
    assert goodput(run).attempts[0].outcome == KILLED
    assert main(["report", str(run), "--html", str(page)]) == 0
    attempts = capsys.readouterr().out.split("attempt  started")[1]
    assert attempts.count(KILLED) == 2  # its end, and the fault
    assert page.read_text().count(f"<td>{KILLED}</td>") == 2
    write_events(run, START, [("c", 5000, "started", {})])
    write_events(run, START, [("d", 5001, "started", {})])
    last = last_attempt(read_attempts(run))
    assert ending(last, 0).startswith(f"The last attempt was {KILLED}")
    assert classify(Evidence(-signal.SIGKILL)).kind == KILLED
