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

EXAMPLE = Path(__file__).parents[2] / "examples" / "parameter_server.py"
STEPS = "--steps=200"


def run(directory: Path, environment: dict[str, str], *options: str) -> str:
    """What the example says. Whatever happens, all that it started is ended."""
    process = subprocess.Popen(
        [sys.executable, EXAMPLE, "--checkpoint-dir", directory, *options],
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


@pytest.mark.timeout(600)
def test_a_killed_worker_costs_no_step(
    tmp_path: Path, child_environment: dict[str, str]
) -> None:
    """TensorFlow gives its steps to the other one; the coordinator lives on."""
    text = run(tmp_path, child_environment, STEPS, "--kill=worker", "--at-step=70")
    assert "killing the worker" in text, text
    assert f"ended with -{signal.SIGKILL:d}: starting it again" in text
    assert list(digests(text, "begin at")) == [0]
    assert list(digests(text, "saved")) == [50, 100, 150, 200]
    assert "200 steps done" in text
    assert text.endswith("exit status 0")


@pytest.mark.timeout(600)
def test_a_killed_coordinator_goes_on_from_the_last_checkpoint(
    tmp_path: Path, child_environment: dict[str, str]
) -> None:
    """With every byte that was saved, on servers that were started anew."""
    command = (STEPS, "--kill=coordinator", "--at-step=120")
    killed = run(tmp_path, child_environment, *command)
    assert killed.endswith(f"exit status -{signal.SIGKILL:d}"), killed
    saved = digests(killed, "saved")
    assert list(saved) == [50, 100]
    resumed = run(tmp_path, child_environment, *command)
    assert digests(resumed, "begin at") == {100: saved[100]}, resumed
    assert list(digests(resumed, "saved")) == [150, 200]
    assert "200 steps done" in resumed
    assert resumed.endswith("exit status 0")
