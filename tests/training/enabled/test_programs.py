"""A program of many fits is killed and run again, with the command or the callback."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

PROGRAM = Path(__file__).with_name("program.py")
# Batches of one attempt: in the second call, and in the last of the sweep.
KILLS = "7,15"

pytestmark = pytest.mark.xdist_group("programs")


@pytest.fixture(scope="module")
def perform(child_environment, tmp_path_factory):
    """Run a command to its end; what the program left."""

    def run(*command, status=0):
        done = subprocess.run(
            command,
            env=child_environment,
            capture_output=True,
            text=True,
            timeout=250,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == status, done.stderr[-3000:]
        return done.stderr

    return run


@pytest.fixture(scope="module")
def plain(perform, tmp_path_factory):
    """What the program leaves without us."""
    out = tmp_path_factory.mktemp("plain") / "out.npz"
    perform(sys.executable, PROGRAM, out, "0")
    return np.load(out)


def assert_equal(left, plain):
    assert set(left.files) == set(plain.files)
    different = [n for n in plain.files if not np.array_equal(left[n], plain[n])]
    assert not different


def test_run_save_makes_a_program_resumable_that_knows_nothing_of_it(
    perform, plain, tmp_path
):
    out = tmp_path / "out.npz"
    told = perform(
        *(sys.executable, "-m", "resilient", "run", "--save", tmp_path / "runs"),
        *("--save-freq", "3", "--backoff", "0.01", "--"),
        *(sys.executable, PROGRAM, out, KILLS),
    )
    assert told.count("it was killed by SIGKILL") == KILLS.count(",") + 1
    assert_equal(np.load(out), plain)
    names = sorted(path.name for path in (tmp_path / "runs").glob("*-*"))
    assert names == [
        *(f"00{i}-sequential" for i in range(1, 8)),
        *("008-noisy", "009-sequential"),
    ]


@pytest.mark.spread
def test_backup_and_restore_is_exact(perform, plain, tmp_path):
    out = tmp_path / "out.npz"
    command = (sys.executable, PROGRAM, out, "7,15", "callback", tmp_path / "backups")
    for _ in range(2):
        perform(*command, status=-9)
    perform(*command)
    assert_equal(np.load(out), plain)
