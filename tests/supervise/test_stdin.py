"""Nothing is on a command's stdin: a program that would be read there is refused."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.once

PROGRAM = "open('ran', 'w')"
PYTHON = sys.executable


def run(command, environment, home, **given):
    return subprocess.run(
        [PYTHON, "-m", "resilient", "run", "--", *command],
        env=environment,
        cwd=home,
        capture_output=True,
        text=True,
        timeout=120,
        **given,
    )


@pytest.mark.parametrize(
    "command",
    [
        [PYTHON],
        [PYTHON, "-"],
        [PYTHON, "-u", "-", "--lr", "0.1"],
        ["sh"],
        ["sh", "-s"],
        ["bash", "-e", "-s", "fast"],
        ["env", "A=1", PYTHON, "-"],
        ["sh", "-c", "python -"],
    ],
)
def test_a_program_in_a_pipe_is_refused(child_environment, tmp_path, command):
    done = run(command, child_environment, tmp_path, input=PROGRAM)
    assert done.returncode == 2
    assert "The program would be read from stdin" in done.stderr
    assert "Write it to a file" in done.stderr
    assert not (tmp_path / "ran").exists()


def test_a_program_in_a_file_on_stdin_is_refused(child_environment, tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    with open(tmp_path / "train.py", "rb") as file:
        done = run([PYTHON, "-"], child_environment, tmp_path, stdin=file)
    assert done.returncode == 2
    assert "The program would be read from stdin" in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        [PYTHON, "-c", "print('ran')"],
        [PYTHON, "-s", "-m", "this"],
        ["sh", "-c", "echo ran - -s"],
        ["echo", "ran", "--shell", "bash"],
    ],
)
def test_other_commands_are_run_with_a_pipe_on_stdin(
    child_environment, tmp_path, command
):
    done = run(command, child_environment, tmp_path, input="nobody reads this")
    assert done.returncode == 0, done.stderr
    assert done.stdout
