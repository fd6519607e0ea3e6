"""``resilient report``: the goodput of a run, for people and as JSON."""

import json
import os
import socket

import pytest
from support.reported import killed_and_resumed, write_events

from resilient.cli.main import main
from resilient.display import duration
from resilient.report.facts import read_facts

pytestmark = pytest.mark.once

OK, _, USAGE, NOTHING, _, FAILED = range(6)
METRICS = "loss 0.25, val_loss 0.5"
GONE = 2**22 + 1  # above what Linux gives
START = 1_700_000_000  # 2023-11-14T22:13:20Z


@pytest.fixture
def directory(tmp_path):
    killed_and_resumed(tmp_path, START)
    return tmp_path


def run(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    output = capsys.readouterr()
    return code, output.out, output.err


def test_report_has_a_line_for_each_part_and_for_each_attempt(directory, capsys):
    code, out, err = run(capsys, "report", directory)
    assert (code, err) == (OK, "")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines == [
        "goodput 98.2% of 1:06:40",
        "part time share",
        "productive 1:05:28 98.2%",
        "saving 1.0 s 0.0%",
        "starting 16.0 s 0.4%",
        "restoring 4.0 s 0.1%",
        "replaying 0.0 s 0.0%",
        "lost 31.0 s 0.8%",
        "down 20.0 s 0.5%",
        "steps: 6,000, plus at least 30 lost",
        "metrics: loss 0.25, val_loss 0.5",
        (
            "saves: 2, 1.5 MB the last; written in 1.00 s (longest 2.00 s), while "
            "training waited 1.00 s in all; 1 postponed"
        ),
        "attempt started time from step repeated to step end host",
        "1 2023-11-14T22:13:20Z 0:01:20 0 70 killed or lost node-7",
        "2 2023-11-14T22:15:00Z 1:05:00 40 30 6,000 ended node-8",
        "fault at attempt step reason",
        "killed or lost 2023-11-14T22:14:40Z 1 70 it was killed by SIGKILL",
        "save failed 2023-11-14T22:31:40Z 2 2,000 the disk is full",
    ]


def steps_line(capsys, directory):
    _, out, _ = run(capsys, "report", directory)
    return next(line for line in out.splitlines() if line.startswith("steps: "))


def test_lost_steps_are_exact_where_every_attempt_said_how_far_it_got(
    directory, capsys
):
    path = directory / "events.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    who = {"attempt": "a1", "host": "node-7", "pid": 1, "time": START + 80}
    failed = json.dumps({"time": 0, **who, "event": "failed", "step": 70}) + "\n"
    path.write_text("".join([*lines[:3], failed, *lines[3:]]))
    assert steps_line(capsys, directory) == "steps: 6,000, plus 30 lost"


def test_a_killed_attempt_without_a_sign_of_life_may_have_lost_steps(directory, capsys):
    path = directory / "events.jsonl"
    path.write_text(path.read_text().replace('"previous": {', '"unknown": {'))
    assert steps_line(capsys, directory) == "steps: 6,000, plus at least 0 lost"


def test_report_as_json_has_the_same_data(directory, capsys):
    code, out, err = run(capsys, "report", directory, "--json")
    assert (code, err) == (OK, "")
    data = json.loads(out, parse_constant=pytest.fail)
    facts = read_facts(directory)
    assert data == {"directory": str(directory), **facts.to_json()}
    assert data["faults"][0]["kind"] == "killed or lost"


def test_several_runs_have_a_line_each(directory, tmp_path, capsys):
    top = tmp_path / "runs"
    for name in ("a", "sweep/b"):
        killed_and_resumed(top / name, START)
    write_events(top / "new", START, [("c3", 0, "started", {})])
    code, out, err = run(capsys, "report", top)
    assert (code, err) == (OK, "")
    header, *lines = (" ".join(line.split()) for line in out.splitlines())
    columns = "run state step epoch saved goodput time attempts faults metrics"
    assert header == columns
    assert lines == [
        f"a ended 6,000 3 2023-11-14T23:20:00Z 98.2% 1:06:40 2 2 {METRICS}",
        "new not known 0 never 0.0% 0.0 s 1 0",
        "sweep/b" + lines[0].removeprefix("a"),
    ]
    code, out, _ = run(capsys, "report", top, "--json")
    runs = json.loads(out, parse_constant=pytest.fail)["runs"]
    assert runs[0] == read_facts(top / "a", "a").to_json()


def test_it_looks_three_levels_deep_and_follows_no_link(tmp_path, capsys):
    for name in ("a", "1/2/b", "1/2/3/c", "quarantine/d", ".e", "a/step-00000001"):
        write_events(tmp_path / name, START, [("x", 0, "started", {})])
    (tmp_path / "loop").symlink_to(tmp_path)
    code, out, _ = run(capsys, "report", tmp_path)
    names = [line.split()[0] for line in out.splitlines()]
    assert (code, names) == (OK, ["run", "1/2/b", "a"])


def test_a_run_that_may_not_be_read_does_not_hide_the_others(
    tmp_path, capsys, monkeypatch
):
    def refuse(path):
        if path == str(tmp_path / "a"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    for name in "ab":
        write_events(tmp_path / name, START, [("x", 0, "started", {})])
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", refuse)
    code, out, _ = run(capsys, "report", tmp_path)
    _, b, last = out.splitlines()
    assert (code, b.split()[0]) == (OK, "b")
    assert last == "unreadable: a: Permission denied"


@pytest.mark.parametrize("pid", [None, GONE, os.getpid()], ids=["no", "gone", "own"])
def test_report_says_whether_the_last_attempt_is_running(directory, capsys, pid):
    lines = (directory / "events.jsonl").read_text().splitlines(keepends=True)
    (directory / "events.jsonl").write_text("".join(lines[:3]))
    if pid is not None:
        who = {"attempt": "a1", "host": socket.gethostname(), "pid": pid}
        beat = {"directory": "d", "time": START + 9, "count": 1, "phase": "training"}
        place = {"step": 9, "epoch": 1, "batch": 2}
        (directory / "heartbeat").write_text(json.dumps(who | beat | place))
    _, out, _ = run(capsys, "report", directory)
    end = {None: "not known", GONE: "killed or lost", os.getpid(): "alive"}[pid]
    assert out.splitlines()[-1].split("  ")[-2].strip() == end


def test_report_changes_nothing(directory, capsys):
    before = (directory / "events.jsonl").read_bytes()
    assert run(capsys, "report", directory)[0] == OK
    assert os.listdir(directory) == ["events.jsonl"]
    assert (directory / "events.jsonl").read_bytes() == before


@pytest.mark.parametrize("text", [None, "", '{"event": "started"}\n', "{\n"])
def test_a_directory_without_events_says_so(tmp_path, capsys, text):
    if text is not None:
        (tmp_path / "events.jsonl").write_text(text)
    code, out, err = run(capsys, "report", tmp_path)
    assert (code, out) == (NOTHING, "")
    assert f"No events of a run can be read in {tmp_path}." in err
    code, out, err = run(capsys, "report", tmp_path, "--json")
    assert (code, err) == (NOTHING, "")
    assert json.loads(out)["error"] == "CheckpointNotFoundError"


def test_a_directory_that_is_not_there_is_not_made(tmp_path, capsys):
    code, _, err = run(capsys, "report", tmp_path / "missing")
    assert code == NOTHING
    assert "No events of a run can be read" in err
    assert os.listdir(tmp_path) == []


def test_a_file_is_wrong_usage(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as ended:
        run(capsys, "report", tmp_path / "file")
    assert ended.value.code == USAGE


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.0 s"),
        (59.94, "59.9 s"),
        (59.96, "0:01:00"),
        (3599.6, "1:00:00"),
        (90061.0, "25:01:01"),
    ],
)
def test_durations_are_rounded_once(seconds, text):
    assert duration(seconds) == text


def test_events_that_cannot_be_read_are_not_missing(tmp_path, capsys):
    (tmp_path / "events.jsonl").mkdir()
    assert main(["report", str(tmp_path)]) == FAILED
    assert "not a regular file" in capsys.readouterr().err
