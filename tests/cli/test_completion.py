"""``resilient completion``: what a shell needs."""

import subprocess
import sys

import pytest

from resilient.cli.main import main

pytestmark = pytest.mark.once

OK, FAILED = 0, 5


def test_without_shtab_it_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == FAILED
    output = capsys.readouterr()
    assert output.out == ""
    assert 'pip install "keras-resilient[completion]"' in output.err


def test_bash_completes_commands_and_options(capsys, tmp_path):
    pytest.importorskip("shtab")  # the test group has it
    assert main(["completion", "bash"]) == OK
    script = tmp_path / "completion"
    script.write_text(capsys.readouterr().out)
    # What bash does when a person presses the tabulator.
    ask = """source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
        _shtab_resilient; echo "${COMPREPLY[@]}" """

    def completed(*words):
        done = subprocess.run(
            ["bash", "-c", ask, script, "resilient", *words],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return done.stdout.split()

    assert completed("ver") == ["verify"]
    assert completed("show", "--fi") == ["--files"]
    assert completed("prune", "--mode", "ma") == ["max"]
    (tmp_path / "runs").mkdir()
    (tmp_path / "run.txt").touch()
    assert completed("ls", f"{tmp_path}/ru") == [f"{tmp_path}/runs"]


def test_zsh_has_the_commands_with_what_they_do(capsys):
    pytest.importorskip("shtab")
    assert main(["completion", "zsh"]) == OK
    script = capsys.readouterr().out
    assert script.startswith("#compdef resilient")
    assert (
        "verify:'Read every byte of the checkpoints and compare checksums.'" in script
    )
