"""Killed on one backend, on a second and on a third: each attempt is a real process.

It trains on shuffled arrays, which switch at the end of an epoch.
"""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from support.forking import environment

from resilient.storage.layout import committed_steps

from .program import EPOCH, SAMPLES

pytestmark = [pytest.mark.sources, pytest.mark.long, pytest.mark.spread(over=["torch"])]

LIMIT = 300.0
KILLED = -signal.SIGKILL
ALLOW = 'allow=["backend"]'


def process(
    directory: Path, backend: str, *options: str
) -> "subprocess.CompletedProcess[str]":
    """One attempt."""
    return subprocess.run(
        [
            *(sys.executable, "-m", "another_backend.program", str(directory)),
            *("3", ALLOW, *options),
        ],
        cwd=Path(__file__).parents[1],
        env=environment() | {"KERAS_BACKEND": backend},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT,
        check=False,
    )


def attempt(directory: Path, backend: str, *options: str) -> int:
    """One attempt that ends or is killed; its exit status."""
    done = process(directory, backend, *options)
    assert done.returncode in (0, KILLED), done.stdout[-4000:]
    return done.returncode


def end(directory: Path) -> Mapping[str, np.ndarray]:
    with np.load(directory / "end.npz") as found:
        return dict(found)


@pytest.mark.timeout(1200)
def test_killed_on_each_backend(tmp_path):
    """The last is exact: as the same attempt that was not killed."""
    run, alone = tmp_path / "run", tmp_path / "alone"
    run.mkdir()
    assert attempt(run, "torch", f"die_before={EPOCH + 2}") == KILLED
    assert committed_steps(run) == [EPOCH]
    assert attempt(run, "jax", f"die_before={2 * EPOCH + 3}", "seed=8") == KILLED
    assert committed_steps(run)[-1] == 2 * EPOCH
    shutil.copytree(run, alone)
    assert attempt(alone, "tensorflow", "seed=9") == 0
    each = "save_freq=1"
    die = f"die_before={2 * EPOCH + 5}"
    assert attempt(run, "tensorflow", die, "seed=10", each) == KILLED
    newest = committed_steps(run)[-1]
    assert 2 * EPOCH < newest < 3 * EPOCH
    refused = process(run, "torch", "seed=12")
    assert refused.returncode == 1
    assert "can only be drawn by tensorflow" in refused.stdout
    assert committed_steps(run)[-1] == newest
    assert attempt(run, "tensorflow", "seed=11", each) == 0
    expected, found = end(alone), end(run)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert np.array_equal(found[name], value), name
    told = json.loads(str(found["told"]))
    assert [len(each) for each in told["history"].values()] == [3] * len(
        told["history"]
    )
    batches = told["batches"]
    for first in range(0, 3 * EPOCH, EPOCH):
        samples = [n for each in batches[first : first + EPOCH] for n in each]
        assert sorted(samples) == list(range(SAMPLES))
