"""The command line of `resilient run`."""

import os
import subprocess
import sys

import pytest

import resilient
from resilient.cli.main import main

pytestmark = pytest.mark.once


def test_without_a_command(capsys):
    for arguments in (["run"], ["run", "--"], ["run", "--nproc", "2", "--"]):
        assert main(arguments) == 2
        assert "There is no command; give one" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [
        ["--bogus"],
        ["--nproc", "0"],
        ["--nproc", "two"],
        ["--max-restarts", "-1"],
        ["--same-failure", "0"],
        ["--backoff", "nan"],
        ["--backoff", "-1"],
        ["--hang-timeout", "soon"],
        ["--max", "3"],  # no abbreviations: they break when an option is added
    ],
)
def test_wrong_options(options, capsys):
    with pytest.raises(SystemExit) as raised:
        main(["run", *options, "--", "true"])
    assert raised.value.code == 2
    message = capsys.readouterr().err
    assert options[0] in message
    assert message.startswith("usage: resilient")


def test_a_directory_that_is_none(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["run", "--dir", str(tmp_path / "file"), "--", "true"]) == 2
    error = capsys.readouterr().err
    assert "not a directory" in error
    assert "Received" in error
    assert main(["run", "--dir", "~nobody-of-it", "--", "true"]) == 2


def run(*arguments, environment):
    return subprocess.run(
        [sys.executable, "-m", "resilient", "run", *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
    )


def test_a_command_that_is_not_there(child_environment):
    result = run("--", "no-such-command", environment=child_environment)
    assert result.returncode == 127
    assert "No such file or directory: 'no-such-command'" in result.stderr
    assert "Restart" not in result.stderr


def test_a_command_that_cannot_be_executed(child_environment, tmp_path):
    (tmp_path / "data").write_text("no program")
    result = run("--", tmp_path / "data", environment=child_environment)
    assert result.returncode == 126
    assert "Permission denied" in result.stderr


@pytest.mark.parametrize("separator", [["--"], []])
def test_options_of_the_command_are_its_own(child_environment, separator):
    code = "import sys; print(sys.argv[1:])"
    command = [*separator, sys.executable, "-c", code, "--nproc", "7", "--", "-x"]
    result = run("--nproc", "1", *command, environment=child_environment)
    assert result.stdout == "['--nproc', '7', '--', '-x']\n"
    assert result.returncode == 0


def test_the_other_commands_do_not_load_the_supervisor(child_environment):
    code = (
        "import sys, resilient.cli.main\n"
        "names = [name for name in sys.modules if name.startswith('resilient.super')]\n"
        "print(sorted(names), 'keras' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=child_environment,
        timeout=120,
    )
    assert result.stdout == "[] False\n"


def test_options_of_save_need_a_directory(capsys):
    assert main(["run", "--save-freq", "3", "--keep", "2", "--", "true"]) == 2
    assert "--keep, --save-freq: only with --save DIR" in capsys.readouterr().err
    assert main(["run", "--allow", "backend", "--", "true"]) == 2
    assert "--allow: only with --save DIR" in capsys.readouterr().err
    assert main(["run", "--save", "x", "--save-freq", "often", "--", "true"]) == 2
    assert "`save_freq` must be a number of batches" in capsys.readouterr().err
    assert main(["run", "--save", "x", "--allow", "backends", "--", "true"]) == 2
    assert "`allow` has a name that is unknown" in capsys.readouterr().err
    assert main(["run", "--save", "s3://key:word@bucket/x", "--", "true"]) == 2
    told = capsys.readouterr().err
    assert "more than a bucket" in told
    assert "word" not in told


def test_the_help_describes_options_of_fit_as_fit_does(capsys):
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    described = " ".join((resilient.fit.__doc__ or "").replace("``", "").split())
    for name, words in [
        ("keep", "ow many checkpoints to keep"),
        ("save_freq", 'hen to save: "auto", "epoch" or a number of batches'),
        ("allow", 'ifferences from the checkpoint to accept, such as "data"'),
    ]:
        assert f"--{name.replace('_', '-')} " in said
        assert words in said
        assert words in described


def test_a_command_without_a_fit_is_told_that_nothing_was_saved(
    child_environment, tmp_path
):
    code = "import sys; print('site' in sys.modules, sys.path)"
    done = run(
        *("--save", str(tmp_path / "runs"), "--", sys.executable, "-c", code),
        environment=child_environment,
    )
    assert done.returncode == 0
    assert "Nothing was saved: the command did not call model.fit" in done.stderr
    assert "True" in done.stdout
    assert "startup" not in done.stdout  # the path that enables is gone
    assert not (tmp_path / "runs").exists()


def test_a_sitecustomize_of_the_user_is_run_as_well(child_environment, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.mine = 'mine'")
    paths = [str(tmp_path), child_environment["PYTHONPATH"]]
    done = run(
        *("--save", str(tmp_path / "runs"), "--"),
        *(sys.executable, "-c", "import sys; print(sys.mine)"),
        environment=child_environment | {"PYTHONPATH": os.pathsep.join(paths)},
    )
    assert done.stdout == "mine\n"
