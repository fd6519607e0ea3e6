"""Several devices in one process: TensorFlow's ``MirroredStrategy``, killed twice."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import keras
import pytest

import resilient

SCRIPT = Path(__file__).with_name("mirrored.py")


def attempt(how: str, source: str, directory: Path, *kill_at: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, SCRIPT, how, source, directory, *kill_at],
        env={
            **os.environ,
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "PYTHONPATH": str(Path(resilient.__file__).parents[1]),
        },
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="tf.distribute is TensorFlow's"
)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("data", ["arrays", "tf.data", "PyDataset"])
def test_every_replica_continues_bit_for_bit(data: str, tmp_path: Path) -> None:
    """Two kills in one epoch, and every component ends as in ``model.fit``."""
    status, expected = attempt("keras", data, tmp_path / "unused")
    assert status == 0, expected
    killed = (-signal.SIGKILL, "")
    assert attempt("resilient", data, tmp_path / "run", "1:3") == killed
    assert attempt("resilient", data, tmp_path / "run", "1:5") == killed
    assert attempt("resilient", data, tmp_path / "run") == (0, expected)
