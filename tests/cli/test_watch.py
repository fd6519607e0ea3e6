"""``resilient watch``: one snapshot for a pipe, and a live table in a terminal."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time

import pytest
from support.reported import killed_and_resumed, write_events

from resilient.cli.main import main
from resilient.telemetry.events import KILLED

pytestmark = pytest.mark.once

START = 1_700_000_000


@pytest.fixture
def runs(tmp_path):
    """One that ended, and one that was killed."""
    killed_and_resumed(tmp_path / "a", START)
    write_events(
        tmp_path / "b",
        START,
        [
            ("b", 0, "started", {}),
            ("b", 1, "training", {"step": 1}),
            ("b", 1, "metrics", {"step": 7, "epoch": 1, "logs": {"loss": 0.125}}),
        ],
    )
    who = {"attempt": "b", "host": os.uname().nodename, "pid": 2**22 + 1}
    beat = {"directory": "d", "time": START + 9, "count": 1, "phase": "training"}
    place = {"step": 9, "epoch": 1, "batch": 2}
    (tmp_path / "b" / "heartbeat").write_text(json.dumps(who | beat | place))
    return tmp_path


def test_a_pipe_gets_one_snapshot(runs, capsys):
    assert main(["watch", str(runs)]) == 0
    header, *lines = (line.split() for line in capsys.readouterr().out.splitlines())
    assert header[:4] == ["run", "state", "step", "epoch"]
    assert lines[0][:9] == [
        *("a", "ended", "6,000", "3", "2023-11-14T23:20:00Z", "98.2%", "1:06:40"),
        *("2", "2"),
    ]
    assert lines[1][:7] == ["b", *KILLED.split(), "9", "1", "never"]
    assert lines[1][-2:] == ["loss", "0.125"]


def test_one_run_and_json(runs, capsys):
    assert main(["watch", str(runs / "a"), "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert (run["state"], run["metrics"]["loss"]) == ("ended", 0.25)


def test_a_directory_without_runs_says_so(tmp_path, capsys):
    assert main(["watch", str(tmp_path)]) == 3
    assert "No events of a run can be read" in capsys.readouterr().err


def test_a_terminal_is_kept_up_to_date_until_ctrl_c(runs):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "resilient", "watch", str(runs)]
    env = os.environ | {"TERM": "xterm", "COLUMNS": "200"}
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=env
    )
    os.close(theirs)
    seen = ""

    def until(text):
        nonlocal seen
        deadline = time.monotonic() + 60
        while text not in seen and time.monotonic() < deadline:
            seen += os.read(ours, 65536).decode(errors="replace")
        assert text in seen

    try:
        until("0.125")
        later = {"step": 9, "epoch": 2, "logs": {"loss": 0.0625}}
        write_events(runs / "b", START, [("b", 9, "metrics", later)])
        until("0.0625")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert not re.search("Traceback|KeyboardInterrupt", seen)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
