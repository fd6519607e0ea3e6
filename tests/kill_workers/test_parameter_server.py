"""The example with parameter servers survives a worker's and the coordinator's kill."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    os.environ["KERAS_BACKEND"] != "tensorflow", reason="a strategy of TensorFlow"
)

REMOTE = Path(__file__).with_name("remote_snapshot.py")
EXAMPLE = Path(__file__).parents[2] / "examples" / "parameter_server.py"
STEPS = "--steps=200"


def run(command: list[str | Path], environment: dict[str, str]) -> str:
    """What a program says. Whatever happens, all that it started is ended."""
    process = subprocess.Popen(
        [sys.executable, *command],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        text, _ = process.communicate(timeout=280)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return f"{text}\nexit status {process.returncode}"


def digests(text: str, of: str) -> dict[int, str]:
    """Step to digest of all variables, of the lines that begin so."""
    found = re.findall(rf"^{of} step (\d+): .*?digest (\w{{64}})$", text, re.MULTILINE)
    return {int(step): digest for step, digest in found}


@pytest.mark.long  # what it shows is TensorFlow's; the coordinator's kill is ours
@pytest.mark.timeout(600)
def test_a_killed_worker_costs_no_step(
    tmp_path: Path, child_environment: dict[str, str]
) -> None:
    """TensorFlow gives its steps to the other one; the coordinator lives on."""
    options = (STEPS, "--kill=worker", "--at-step=70")
    text = run([EXAMPLE, "--checkpoint-dir", tmp_path, *options], child_environment)
    assert "killing the worker" in text, text
    assert f"ended with -{signal.SIGKILL:d}: starting it again" in text
    assert list(digests(text, "begin at")) == [0]
    assert list(digests(text, "saved")) == [50, 100, 150, 200]
    assert "200 steps done" in text
    assert text.endswith("exit status 0")


@pytest.mark.long  # eight starts of TensorFlow; the next one assigns to a server, too
@pytest.mark.timeout(600)
def test_a_killed_coordinator_goes_on_from_the_last_checkpoint(
    tmp_path: Path, child_environment: dict[str, str]
) -> None:
    """With every byte that was saved, on servers that were started anew."""
    options = (STEPS, "--kill=coordinator", "--at-step=120")
    command = [EXAMPLE, "--checkpoint-dir", tmp_path, *options]
    killed = run(command, child_environment)
    assert killed.endswith(f"exit status -{signal.SIGKILL:d}"), killed
    saved = digests(killed, "saved")
    assert list(saved) == [50, 100]
    resumed = run(command, child_environment)
    assert digests(resumed, "begin at") == {100: saved[100]}, resumed
    assert list(digests(resumed, "saved")) == [150, 200]
    assert "200 steps done" in resumed
    assert resumed.endswith("exit status 0")


def test_a_snapshot_of_a_server_s_variable_is_in_the_coordinator_s_memory(
    tmp_path: Path, child_environment: dict[str, str]
) -> None:
    """So it needs no server any more, and later updates do not reach it."""
    text = run([REMOTE, tmp_path], child_environment)
    assert "every byte is there" in text, text
