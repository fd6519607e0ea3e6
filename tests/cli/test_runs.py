"""``resilient ls`` over a directory of runs, and without a directory."""

import json
import os

import pytest
from support.checkpoint_samples import filled, save

from resilient.cli import runs
from resilient.cli.main import main

pytestmark = pytest.mark.once

OK, DAMAGED, _, NOTHING, _, FAILED = range(6)


@pytest.fixture
def directory(tmp_path):
    """A run that finished, one that goes on, one that has not saved, and no run."""
    top = tmp_path / "runs"
    (top / "sweep").mkdir(parents=True)
    save(filled(top / "a", 10), 40, metrics={"loss": 0.5}, finished=True)
    filled(top / "sweep" / "b", 10, 25)
    (top / "new").mkdir()
    (top / "new" / "events.jsonl").touch()
    (top / "other").mkdir()
    (top / "latest").symlink_to("a")
    return top


def run(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    output = capsys.readouterr()
    return code, output.out, output.err


def names(out):
    return [line.split()[0] for line in out.splitlines()]


def test_there_is_a_line_for_each_run(directory, capsys):
    code, out, err = run(capsys, "ls", directory)
    assert (code, err) == (OK, "")
    header, *lines = (line.split() for line in out.splitlines())
    assert header == ["run", "step", "epoch", "batch", "saved", "size", "state"]
    (a, new, b) = lines
    assert a[:4] == ["a", "40", "4", "end"]
    assert a[5:] == ["160", "kB", "finished"]
    assert new == ["new", "0", "B", "no", "checkpoint"]
    assert b[:4] == ["sweep/b", "25", "3", "5"]
    assert b[5:] == ["160", "kB"]


@pytest.mark.parametrize("command", ["show", "verify"])
def test_other_commands_lead_to_the_runs(directory, capsys, command):
    code, _, err = run(capsys, command, directory)
    assert code == NOTHING
    assert f"Name one of the runs in it: `resilient ls {directory}` lists" in err


def test_runs_as_json(directory, capsys):
    code, out, _ = run(capsys, "ls", directory, "--json")
    data = json.loads(out)
    assert code == OK
    assert data["directory"] == str(directory)
    assert data["complete"] is True
    assert [each["name"] for each in data["runs"]] == ["a", "new", "sweep/b"]
    a, new, b = data["runs"]
    assert (a["newest"]["step"], a["newest"]["finished"]) == (40, True)
    assert a["newest"]["metrics"] == {"loss": 0.5}
    assert new == {
        "name": "new",
        "checkpoints": 0,
        "newest": None,
        "nbytes": 0,
        "damaged": [],
    }
    assert b["checkpoints"] == 2


def test_a_run_with_damage_is_named(directory, capsys):
    (directory / "sweep" / "b" / "step-00000025" / "manifest.json").write_bytes(b"")
    code, out, _ = run(capsys, "ls", directory)
    assert code == DAMAGED
    line = out.splitlines()[-1].split()
    assert line[:2] == ["sweep/b", "10"]
    assert line[-2:] == ["damaged:", "step-00000025"]


def test_a_run_that_may_not_be_read_does_not_hide_the_others(
    directory, capsys, monkeypatch
):
    def refuse(path):
        if path.name == "a":
            raise PermissionError(13, "Permission denied", str(path))
        return is_run(path)

    is_run = runs.is_run
    monkeypatch.setattr(runs, "is_run", refuse)
    code, out, _ = run(capsys, "ls", directory)
    assert code == FAILED
    assert names(out) == ["run", "new", "sweep/b", "unreadable:"]
    assert out.endswith("unreadable: a: Permission denied\n")


def test_it_does_not_look_for_ever(directory, capsys, monkeypatch):
    deep = directory / "1" / "2" / "3"
    deep.mkdir(parents=True)
    filled(deep / "4", 10)
    (directory / "loop").symlink_to(directory)
    code, out, _ = run(capsys, "ls", directory)
    assert (code, names(out)) == (OK, ["run", "a", "new", "sweep/b"])
    monkeypatch.setattr(runs, "_MOST", 2)
    code, out, _ = run(capsys, "ls", directory)
    assert code == OK
    assert "too many directories" in out.splitlines()[-1]


def test_without_a_directory_it_looks_here_and_in_runs(
    directory, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(capsys, "ls")
    assert (code, names(out)) == (OK, ["run", "a", "new", "sweep/b"])
    monkeypatch.chdir(directory)
    code, out, _ = run(capsys, "ls")
    assert (code, names(out)) == (OK, ["run", "a", "new", "sweep/b"])
    monkeypatch.chdir(directory / "a")
    code, out, _ = run(capsys, "ls")
    assert (code, names(out)) == (OK, ["step", "10", "40"])


def test_without_a_directory_and_without_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, "ls")
    assert (code, out) == (NOTHING, "")
    assert err == (
        f"resilient: There are no checkpoints in {tmp_path}, or in a directory "
        "`runs` there.\nName the checkpoint_dir of a run, or a directory of several "
        "runs: resilient ls DIR\n"
    )
    assert os.listdir(tmp_path) == []
