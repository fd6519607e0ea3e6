"""The multi-worker examples do what they promise, run as a reader would run them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import keras
import pytest
from own_data import NO_PARTS
from support import EXAMPLES, SUPPORT, gang

pytestmark = pytest.mark.skipif(NO_PARTS, reason="refused, see test_loops.py")

# The loop by hand is TensorFlow's; test_worker_loops.py kills a worker of it, too.
# test_killed_workers.py has a worker that `resilient run` starts again, in less time.
NAMES = ["multi_worker.py"]
if keras.backend.backend() == "tensorflow":
    NAMES.append("multi_worker_loop.py")


def run(
    example: Path, directory: Path | str, environment: dict[str, str], *options: str
) -> str:
    """What `resilient run` and two workers say; all of them are ended after it.

    Each save is waited for, so that there is one to go on from at the kill.
    """
    supervised = [sys.executable, "-m", "resilient", "run", "--nproc=2", "--backoff=0"]
    process = subprocess.Popen(
        [
            *(*supervised, "--dir", directory, "--max-restarts=1", "--"),
            *(sys.executable, SUPPORT / "waited.py", example),
            *("--checkpoint-dir", directory, *options),
        ],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        text, _ = process.communicate(timeout=280)
    finally:
        process.terminate()  # which ends the workers first
        process.wait(60)
    assert process.returncode == 0, text
    return text


def digests(text: str) -> dict[int, str]:
    """Worker to digest."""
    found = re.findall(r"worker (\d)[^\n]*?: digest (\w{64})", text)
    return {int(worker): digest for worker, digest in found}


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NAMES)
def test_killed_in_mid_epoch_it_ends_with_the_digest_of_a_run_left_alone(
    name: str, tmp_path: Path, child_environment: dict[str, str]
) -> None:
    """On each worker: one is killed, all are started again and resume."""
    example = EXAMPLES / name
    alone = gang.run(example, "--checkpoint-dir", tmp_path / "alone", timeout=280)
    ends = digests("\n".join(alone.check().outputs))
    assert set(ends) == {0, 1}, alone.outputs
    assert ends[0] == ends[1]
    options = ("--kill-worker=1", "--at-step=20")
    killed = run(example, tmp_path / "killed", child_environment, *options)
    assert "Restart 1" in killed, killed
    assert "Resumed at step" in killed
    assert digests(killed) == ends


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("doomed", [0, 1])
def test_killed_workers_go_on_from_an_object_store(
    doomed: int,
    tmp_path: Path,
    child_environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Process 0 uploads for all of them."""
    monkeypatch.chdir(tmp_path)  # where the example notes that it killed one
    example, store = EXAMPLES / "multi_worker.py", f"file://{tmp_path}/far"
    ends = digests(run(example, tmp_path / "alone", child_environment))
    environment = child_environment | {"TMPDIR": os.fspath(tmp_path)}
    options = (f"--kill-worker={doomed}", "--at-step=20")
    killed = run(example, store, environment, *options)
    assert "Restart 1" in killed, killed
    assert f"Resumed at step 16 (epoch 2, batch 2) from {store}" in killed, killed
    assert digests(killed) == ends
    assert list(tmp_path.glob("far/step-00000042-*/manifest.json"))
