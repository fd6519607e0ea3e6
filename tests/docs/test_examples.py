"""The examples do what they promise, run as a reader would run them."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support import EXAMPLES

# Compiling the example on JAX takes longest; its short session has the loop of optax.
pytestmark = pytest.mark.spread(over=["tensorflow", "torch"])

DIGITS = EXAMPLES / "digits.py"


def run(
    example: Path, directory: Path, environment: dict[str, str], *options: str
) -> tuple[int, str]:
    """The exit status and the output of an example, in a fresh process."""
    done = subprocess.run(
        [sys.executable, example, "--checkpoint-dir", directory, *options],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=250,
    )
    return done.returncode, done.stdout


def digest(text: str) -> str:
    found = re.search(r"^digest (\w{64})$", text, re.MULTILINE)
    assert found, text
    return found[1]


@pytest.mark.timeout(600)
def test_digits_killed_in_mid_epoch_ends_with_the_digest_of_a_run_left_alone(
    tmp_path: Path, child_environment: dict[str, str]
) -> None:
    """The same command, killed by itself once, resumes and ends alike."""
    status, alone = run(DIGITS, tmp_path / "alone", child_environment, "--epochs=2")
    assert status == 0, alone
    options = ("--epochs=2", "--kill-at=1:17")
    command = (DIGITS, tmp_path / "killed", child_environment, *options)
    status, killed = run(*command)
    assert status == -signal.SIGKILL, killed
    assert "digest" not in killed
    status, resumed = run(*command)
    assert status == 0, resumed
    assert "Resumed at step" in resumed
    assert digest(resumed) == digest(alone)
