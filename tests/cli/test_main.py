"""The commands: what they say, what they change, and how they end."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
from support.checkpoint_samples import (
    cannot_be_read,
    filled,
    leftovers,
    newest_good,
    save,
    steps,
    verified,
)

from resilient import __version__
from resilient.cli.main import main
from resilient.storage.lock import DirectoryLock
from resilient.storage.store import Store

pytestmark = pytest.mark.once

OK, DAMAGED, USAGE, NOTHING, IN_USE, FAILED = range(6)
COMMANDS = [["ls"], ["show"], ["verify"], ["prune", "--keep", "1"]]


@pytest.fixture
def store(tmp_path):
    store = filled(tmp_path, 10, 25)
    save(store, 40, metrics={"val_loss": 0.125, "bad": float("nan")}, finished=True)
    return store


def run(capsys, *arguments):
    """Exit code and both outputs of a command."""
    code = main([str(argument) for argument in arguments])
    output = capsys.readouterr()
    return code, output.out, output.err


def run_json(capsys, *arguments):
    code, out, err = run(capsys, *arguments, "--json")
    assert err == ""
    return code, json.loads(out, parse_constant=pytest.fail)


def empty(store, step, name="run.json"):
    (store.directory / f"step-{step:08d}" / name).write_bytes(b"")


def test_ls_has_a_line_for_each_checkpoint(store, capsys):
    code, out, _ = run(capsys, "ls", store.directory)
    assert code == OK
    header, first, second, third = (line.split() for line in out.splitlines())
    assert header == ["step", "epoch", "batch", "saved", "size", "metrics"]
    assert first[:3] == ["10", "2", "0"]
    assert second[:3] == ["25", "3", "5"]
    assert third[:3] == ["40", "4", "end"]  # of four epochs, counted from 1
    assert " ".join(third[4:]) == "80.1 kB val_loss 0.125, bad nan finished"


def test_ls_as_json(store, capsys):
    code, data = run_json(capsys, "ls", store.directory)
    assert code == OK
    assert data["directory"] == str(store.directory)
    assert [c["step"] for c in data["checkpoints"]] == [10, 25, 40]
    newest = data["checkpoints"][-1]
    assert newest.pop("created")
    assert newest == {
        "name": "step-00000040",
        "step": 40,
        "epoch": 4,
        "batch": 0,
        "finished": True,
        "nbytes": store.checkpoints()[-1].nbytes,
        "metrics": {"val_loss": 0.125, "bad": "nan"},
    }


def test_ls_names_what_is_damaged_and_what_is_in_quarantine(store, capsys):
    empty(store, 40)
    newest_good(store)
    empty(store, 10, "manifest.json")
    code, out, _ = run(capsys, "ls", store.directory)
    assert code == DAMAGED
    assert "damaged: step-00000010: manifest.json is empty\n" in out
    assert "in quarantine: step-00000040-1, damaged: run.json has 0 bytes" in out
    code, data = run_json(capsys, "ls", store.directory)
    assert code == DAMAGED
    (damaged,) = data["unusable"]
    assert (damaged["name"], damaged["verdict"]) == ("step-00000010", "damaged")
    assert [entry["kind"] for entry in data["quarantine"]] == ["damaged"]


def test_show_tells_of_the_newest(store, capsys):
    code, out, _ = run(capsys, "show", store.directory)
    assert code == OK
    assert "step 40 (end of epoch 4), finished\n" in out
    assert "metrics: val_loss 0.125, bad nan\n" in out
    assert "keras: 3.15.1\n" in out


def test_show_tells_of_one_step(store, capsys):
    code, out, _ = run(capsys, "show", store.directory / "step-00000025")
    assert code == OK
    assert "step 25 (epoch 3, batch 5), not finished\n" in out
    assert "metrics: none\n" in out


def test_show_as_json(store, capsys):
    code, data = run_json(capsys, "show", store.directory / "step-00000025")
    assert code == OK
    assert data["path"] == str(store.directory / "step-00000025")
    assert data["environment"] == {
        "keras-resilient": __version__,
        "keras": "3.15.1",
    }
    assert data["files"]["run.json"] == vars(verified(store, 25).files["run.json"])


def test_show_of_a_missing_step_names_those_that_are_there(store, capsys):
    code, out, err = run(capsys, "show", store.directory / "step-00000030")
    assert (code, out) == (NOTHING, "")
    assert "10, 25, 40" in err


def test_show_names_a_file_that_is_cut(store, capsys):
    name = next(iter(verified(store, 40).files))
    path = store.directory / "step-00000040" / name
    os.truncate(path, path.stat().st_size - 1)
    code, _, err = run(capsys, "show", store.directory)
    assert code == DAMAGED
    assert f"step-00000040: {name} has " in err


def test_show_of_a_damaged_manifest_says_so(store, capsys):
    empty(store, 40, "manifest.json")
    code, _, err = run(capsys, "show", store.directory)
    assert code == DAMAGED
    assert "step-00000040: manifest.json is empty" in err


def test_one_that_may_not_be_read_does_not_hide_the_others(store, capsys, monkeypatch):
    """Another user saved it, perhaps. (The user of these tests may read anything.)"""
    cannot_be_read(monkeypatch, step=25)
    code, out, _ = run(capsys, "ls", store.directory)
    lines = out.splitlines()
    assert (code, len(lines)) == (FAILED, 4)
    assert lines[-1].startswith("unreadable: step-00000025: ")
    assert f"{store.directory}/step-00000025/manifest.json" in lines[-1]
    code, data = run_json(capsys, "verify", store.directory)
    verdicts = {each["step"]: each["verdict"] for each in data["checkpoints"]}
    assert (code, verdicts) == (FAILED, {10: "good", 25: "unreadable", 40: "good"})
    code, _, err = run(capsys, "show", store.directory / "step-00000025")
    assert code == FAILED
    assert "Allow this user to read there." in err


def test_verify_finds_all_good(store, capsys):
    code, out, _ = run(capsys, "verify", store.directory)
    assert code == OK
    good = [f"step-000000{step}: good\n" for step in (10, 25, 40)]
    assert out == "".join(good)


def test_verify_reports_every_problem_and_changes_nothing(store, capsys):
    empty(store, 25)
    os.remove(store.directory / "step-00000025" / "variables" / "weights.bin")
    before = sorted(os.listdir(store.directory))
    code, out, _ = run(capsys, "verify", store.directory)
    assert code == DAMAGED
    assert out.splitlines()[1:4] == [
        "step-00000025: damaged",
        "  run.json has 0 bytes instead of 20,008",
        "  variables/weights.bin is missing",
    ]
    code, data = run_json(capsys, "verify", store.directory)
    assert code == DAMAGED
    assert [bool(c["problems"]) for c in data["checkpoints"]] == [False, True, False]
    assert sorted(os.listdir(store.directory)) == before


def test_verify_names_what_the_manifest_does_not_list(store, capsys):
    """It is no damage: network file systems leave files of their own."""
    inside = store.directory / "step-00000025" / "variables"
    (inside / ".metadata").write_bytes(b"x")
    (inside / "\x1b[2J").write_bytes(b"x")
    code, out, _ = run(capsys, "verify", store.directory)
    assert code == OK
    added = "is not listed in the manifest: it was added later, and is not read"
    assert out.splitlines()[1:4] == [
        "step-00000025: good",
        f"  variables/\\u001b[2J {added}",
        f"  variables/.metadata {added}",
    ]
    code, data = run_json(capsys, "verify", store.directory)
    assert code == OK
    assert data["checkpoints"][1]["unlisted"] == [
        "variables/\x1b[2J",
        "variables/.metadata",
    ]


def test_verify_works_beside_a_living_run(store, capsys):
    with DirectoryLock(store.directory):
        assert run(capsys, "verify", store.directory)[0] == OK


def test_a_checkpoint_that_is_pruned_meanwhile_is_no_damage(store, capsys, monkeypatch):
    problems = Store.problems

    def prune_first(self, step):
        if step == 10:
            shutil.rmtree(store.directory / "step-00000010")
        return problems(self, step)

    monkeypatch.setattr(Store, "problems", prune_first)
    code, out, _ = run(capsys, "verify", store.directory)
    assert code == OK
    assert "step-00000010" not in out


def test_prune_keeps_the_newest(store, capsys):
    code, out, _ = run(capsys, "prune", store.directory, "--keep", 1)
    assert code == OK
    assert out == "Deleted: 10, 25 (160 kB). Kept: 40.\n"
    assert steps(store) == [40]


def test_prune_keeps_the_best_besides(tmp_path, capsys):
    store = Store(tmp_path)
    for step, reward in [(10, 1.0), (20, 3.0), (30, 2.0)]:
        save(store, step, metrics={"reward": reward})
    arguments = ["--keep", 1, "--best", "reward", "--mode", "max"]
    code, data = run_json(capsys, "prune", tmp_path, *arguments)
    assert code == OK
    assert (data["removed"], data["kept"]) == ([10], [20, 30])
    assert steps(store) == [20, 30]


def test_prune_deletes_nothing_where_no_checkpoint_has_the_metric(store, capsys):
    arguments = ["--keep", 1, "--best", "accuracy"]
    code, _, err = run(capsys, "prune", store.directory, *arguments)
    assert code == FAILED
    assert "No checkpoint has the metric" in err
    assert "They have: " in err
    assert steps(store) == [10, 25, 40]


def test_a_dry_run_only_says_what_would_go(store, capsys):
    with DirectoryLock(store.directory):
        code, out, _ = run(capsys, "prune", store.directory, "--keep", 2, "--dry-run")
    assert code == OK
    assert out == "Would delete: 10 (80.1 kB). Kept: 25, 40.\n"
    assert steps(store) == [10, 25, 40]


def test_prune_deletes_what_dead_attempts_left(store, capsys):
    (store.directory / "step-00000050.tmp-0123456789ab").mkdir()
    code, out, _ = run(capsys, "prune", store.directory, "--keep", 5)
    assert (code, out) == (OK, "Deleted: nothing (0 B). Kept: 10, 25, 40.\n")
    assert leftovers(store.directory) == []


def test_prune_does_not_touch_the_directory_of_a_living_run(store, capsys):
    with DirectoryLock(store.directory):
        code, _, err = run(capsys, "prune", store.directory, "--keep", 1)
    assert code == IN_USE
    assert f"process {os.getpid()} on" in err
    assert steps(store) == [10, 25, 40]


def test_prune_deletes_nothing_while_the_newest_is_damaged(store, capsys):
    """The older ones are what a resume will fall back to."""
    empty(store, 40)
    code, _, err = run(capsys, "prune", store.directory, "--keep", 1)
    assert code == DAMAGED
    assert "nothing is deleted" in err
    assert steps(store) == [10, 25, 40]


def test_prune_looks_at_what_is_signed_where_there_is_a_key(store, capsys, monkeypatch):
    monkeypatch.setenv("RESILIENT_KEY", "k" * 32)
    code, _, err = run(capsys, "prune", store.directory, "--keep", 1)
    assert code == FAILED
    assert "RESILIENT_KEY is set, but this was not signed with it" in err
    assert steps(store) == [10, 25, 40]


def test_prune_reports_what_it_may_not_delete(store, capsys, monkeypatch):
    def refuse(*_arguments):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "rename", refuse)
    code, _, err = run(capsys, "prune", store.directory, "--keep", 1)
    assert code == FAILED
    assert "cannot be deleted: Permission denied" in err


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_directory_that_is_not_there_is_not_made(tmp_path, capsys, command):
    code, out, err = run(capsys, *command, tmp_path / "missing")
    assert (code, out) == (NOTHING, "")
    assert err.startswith(
        f"resilient: There is no checkpoint in {tmp_path / 'missing'}.\n"
        "Name the checkpoint_dir of a run that has saved: `resilient report DIR` "
    )
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_directory_without_checkpoints_says_so(tmp_path, capsys, command):
    code, _, err = run(capsys, *command, tmp_path)
    assert code == NOTHING
    assert "There is no checkpoint in" in err
    code, data = run_json(capsys, *command, tmp_path)
    assert code == NOTHING
    assert data["error"] == "CheckpointNotFoundError"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_an_impossible_address_or_a_file_is_wrong_usage(tmp_path, capsys, command):
    (tmp_path / "file").write_text("")
    for path in ("s3://", "s3://key:word@bucket/run", tmp_path / "file", ""):
        with pytest.raises(SystemExit) as ended:
            run(capsys, *command, path)
        assert ended.value.code == USAGE
        err = capsys.readouterr().err
        assert "checkpoint_dir=" in err
        assert "word" not in err


@pytest.mark.parametrize(
    "arguments",
    ["", "list DIR", "ls", "report", "show DIR 10", "prune DIR", "ls ~nobody-of-it"],
)
def test_wrong_usage_ends_with_2(capsys, arguments):
    with pytest.raises(SystemExit) as ended:
        main(arguments.split())
    assert ended.value.code == USAGE
    assert "usage: resilient" in capsys.readouterr().err


def test_a_metric_without_a_direction_is_wrong_usage(store, capsys):
    arguments = ["--keep", 1, "--best", "reward"]
    code, _, err = run(capsys, "prune", store.directory, *arguments)
    assert code == USAGE
    assert 'mode="min" or mode="max"' in err
    assert steps(store) == [10, 25, 40]


def printed(capsys, *arguments):
    """What a command prints that ends at once."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_the_help_lists_the_commands_and_the_exit_codes(capsys):
    out = printed(capsys, "--help")
    names = re.findall(r"^    (\w+)", out, re.MULTILINE)
    looking = ["ls", "show", "verify", "prune", "report", "watch", "diff"]
    assert names == ["run", "prove", *looking, "export", "import"]
    assert "4 the directory is in use by a running process" in " ".join(out.split())
    assert "exit codes" not in printed(capsys, "prune", "--help")


def test_the_version(capsys):
    assert printed(capsys, "--version") == f"keras-resilient {__version__}\n"


@pytest.mark.parametrize("count", ["0", "-1", "nope"])
def test_a_number_that_is_none_is_told_once(tmp_path, capsys, count):
    with pytest.raises(SystemExit) as ended:
        main(["prune", str(tmp_path), "--keep", count])
    assert ended.value.code == USAGE
    err = capsys.readouterr().err
    assert err.endswith(f"--keep: '{count}' is not an integer of 1 or more\n")


def test_the_module_is_the_command_and_imports_no_backend(store, child_environment):
    program = (
        "import runpy, sys; sys.argv[0] = 'resilient'\n"
        "try: runpy.run_module('resilient', run_name='__main__')\n"
        "finally: assert not {'keras', 'tensorflow', 'jax', 'torch'} & set(sys.modules)"
    )
    command = [sys.executable, "-c", program, "verify", str(store.directory)]
    done = subprocess.run(
        command, env=child_environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (OK, "")
    assert done.stdout.startswith("step-00000010: good\n")


def test_output_that_cannot_be_written_is_no_damage(store, child_environment):
    """A full disk behind standard output is told, and has its own exit code."""
    with open("/dev/full", "w") as full:
        child = subprocess.run(
            [sys.executable, "-m", "resilient", "ls", store.directory],
            env=child_environment,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
    assert child.returncode == FAILED
    assert "Traceback" not in child.stderr
    assert "No space left" in child.stderr


def test_names_that_the_terminal_cannot_show_are_escaped(
    store, child_environment, tmp_path
):
    directory = tmp_path / "läufe"
    shutil.copytree(store.directory, directory)
    child = subprocess.run(
        [sys.executable, "-m", "resilient", "show", directory],
        env=child_environment | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (child.returncode, child.stderr) == (OK, "")
    assert "l\\xe4ufe" in child.stdout


@pytest.mark.skipif(os.name == "nt", reason="there is no sh")
@pytest.mark.parametrize(
    ("directory", "closed", "code"), [("run", ">&-", OK), ("none", "2>&-", NOTHING)]
)
def test_a_closed_stream_is_no_error(store, child_environment, directory, closed, code):
    name = {"run": store.directory, "none": store.directory / "none"}[directory]
    command = f"{sys.executable} -m resilient ls {name} {closed}"
    done = subprocess.run(
        ["sh", "-c", command],
        env=child_environment,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, b"", b"")


@pytest.mark.parametrize("arguments", [["ls"], ["show", "--json"], ["--help"]], ids=str)
def test_a_reader_that_is_gone_is_no_error(store, child_environment, arguments):
    """``| head`` closes the pipe when it has seen enough."""
    command = [sys.executable, "-m", "resilient", *arguments]
    if arguments != ["--help"]:
        command.append(str(store.directory))
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as pipe:
        child = subprocess.run(
            command,
            env=child_environment | {"PYTHONUNBUFFERED": ""},
            stdout=pipe,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
    assert (child.returncode, child.stderr) == (128 + signal.SIGPIPE, "")
