"""The examples do what they promise."""

import re
import signal
from pathlib import Path

import pytest
from support import EXAMPLES, SUPPORT
from support.gang import run_alone

# Compiling the example on JAX takes longest; its short session has the loop of optax.
pytestmark = pytest.mark.spread(over=["tensorflow", "torch"])

DIGITS = EXAMPLES / "digits.py"


def run(example: Path, directory: Path, *options: str) -> tuple[int | str, str]:
    """How an example ended, and what it printed; each of its saves is waited for."""
    command = (SUPPORT / "waited.py", example, "--checkpoint-dir", directory)
    return run_alone(*command, *options, timeout=250)


def digest(text: str) -> str:
    found = re.search(r"^digest (\w{64})$", text, re.MULTILINE)
    assert found, text
    return found[1]


@pytest.mark.timeout(600)
def test_digits_killed_in_mid_epoch_ends_with_the_digest_of_a_run_left_alone(
    tmp_path: Path,
) -> None:
    """The same command, killed by itself once, resumes and ends alike."""
    status, alone = run(DIGITS, tmp_path / "alone", "--epochs=2")
    assert status == 0, alone
    command = (DIGITS, tmp_path / "killed", "--epochs=2", "--kill-at=1:17")
    status, killed = run(*command)
    assert status == -signal.SIGKILL, killed
    assert "digest" not in killed
    status, resumed = run(*command)
    assert status == 0, resumed
    assert "Resumed at step" in resumed
    assert digest(resumed) == digest(alone)
