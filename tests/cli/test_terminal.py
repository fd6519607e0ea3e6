"""What a person sees in a terminal, and does not in a file."""

import os
import pty
import subprocess
import sys

import pytest
from support.checkpoint_samples import filled, save

pytestmark = pytest.mark.once

GREEN, RED, BOLD = "\x1b[32m", "\x1b[31m", "\x1b[1m"


@pytest.fixture
def directory(tmp_path):
    store = filled(tmp_path / "run", 10)
    save(store, 20, metrics={"val_loss": 0.25})
    save(store, 30, metrics={"val_loss": 0.5})
    save(store, 40, metrics={"val_loss": 0.75}, finished=True)
    (store.directory / "step-00000010" / "manifest.json").write_bytes(b"")
    return store.directory


def in_terminal(environment, *arguments, **variables):
    """What a command prints in a terminal of 120 columns."""
    leader, follower = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "resilient", *map(str, arguments)],
        env=environment | {"TERM": "xterm", "COLUMNS": "120"} | variables,
        stdin=follower,
        stdout=follower,
        stderr=subprocess.STDOUT,
    )
    os.close(follower)
    shown = b""
    try:
        while block := os.read(leader, 65536):
            shown += block
    except OSError:  # the end, on Linux
        pass
    os.close(leader)
    assert child.wait(120) in (0, 1)
    return shown.decode().replace("\r\n", "\n")


@pytest.fixture
def plain(child_environment):
    return {
        name: value
        for name, value in child_environment.items()
        if name not in ("NO_COLOR", "FORCE_COLOR")
    }


def test_a_terminal_has_colours(directory, plain):
    header, *_, damaged = in_terminal(plain, "ls", directory).splitlines()
    assert BOLD in header
    assert damaged.startswith(f"{RED}damaged: step-00000010: ")
    verdicts = in_terminal(plain, "verify", directory)
    assert f"{RED}step-00000010: damaged" in verdicts
    assert f"{GREEN}step-00000040: good" in verdicts


def test_no_color_is_respected(directory, plain):
    shown = in_terminal(plain, "verify", directory, NO_COLOR="1")
    assert "damaged" in shown
    assert GREEN not in shown
    assert RED not in shown


def test_a_pipe_has_no_colours(directory, plain):
    command = [sys.executable, "-m", "resilient", "ls", directory]
    out = subprocess.run(command, env=plain, capture_output=True, text=True).stdout
    assert "\x1b" not in out
    assert out.count("Z ") == 3
