"""The real torchrun starts killed workers again, and stops them when it is asked to."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import keras
import pytest
from support import EXAMPLES, SUPPORT

pytestmark = [
    pytest.mark.skipif(keras.backend.backend() != "torch", reason="it starts torch"),
    pytest.mark.timeout(600),
]


def start(
    directory: Path, environment: dict[str, str], *options: str, restarts: int = 1
) -> subprocess.Popen[str]:
    """Two workers, whose saves are waited for: there is one to resume from."""
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    return subprocess.Popen(
        [
            *(*torchrun, "--nproc-per-node=2", f"--max-restarts={restarts}"),
            *(SUPPORT / "waited.py", EXAMPLES / "multi_worker.py"),
            *("--checkpoint-dir", directory, *options),
        ],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[dict[str, str], str]:
    """The digest of each worker, and all that was said."""
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 0, text
    found = re.findall(r"worker (\d) of 2: digest (\w{64})", text)
    return dict(found), text


def test_killed_in_mid_epoch_workers_end_with_the_digest_of_a_run_left_alone(
    tmp_path, child_environment
):
    """In one restart: the workers do not look for those of the first start."""
    alone, _ = ended(start(tmp_path / "alone", child_environment, restarts=0))
    assert alone["0"] == alone["1"]
    kill = ("--kill-worker=1", "--at-step=20")
    killed, text = ended(start(tmp_path / "killed", child_environment, *kill))
    assert "exitcode: -9" in text
    assert "Resumed at step 16 (epoch 2, batch 2)" in text
    assert killed == alone


def test_asked_to_stop_workers_save_and_the_same_command_goes_on(
    tmp_path, child_environment
):
    alone, _ = ended(start(tmp_path / "alone", child_environment, "--epochs=20"))
    process = start(tmp_path / "run", child_environment, "--epochs=20")
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("Epoch 2/"):
            break
    process.send_signal(signal.SIGTERM)
    text, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    (stopped,) = re.findall(r"Stopped at (step \d+) .* by SIGTERM: saved\.", text)
    resumed, text = ended(start(tmp_path / "run", child_environment, "--epochs=20"))
    assert f"Resumed at {stopped} " in text
    assert resumed == alone
