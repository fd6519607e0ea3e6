"""SIGKILL while training goes on and a checkpoint is being written beside it.

Elsewhere training waits for each save, so that a kill point says what is committed.
Here nobody waits, and a slow disk makes sure that a write is under way.
"""

import os
import random

import pytest

from .conftest import Expected, MakeRun
from .harness import Run, assert_same

KILLS = int(os.environ.get("RESILIENT_KILLS", "300"))
SLOW = 0.06  # seconds a flush; a checkpoint takes about ten
NAMES = ["all_at_once", "convolution"]
POINTS = [
    "train_batch_end@0:4",
    "epoch_end@0",
    "train_batch_end@1:1",
    "train_batch_end@1:5",
    "train_batch_end@2:2",
    "train_end",
]


def _kill(run: Run, kill: str) -> tuple[bool, bool]:
    """Kill it there; no checkpoint that was committed may be lost by it.

    Returns:
        Whether it was killed, and whether a write was under way.
    """
    before = [path.name for path in run.committed()]
    end = run(kill)
    after = [path.name for path in run.committed()]
    assert not before or max(after) >= max(before), "a commit was undone"
    return end.killed, any(run.home.glob("checkpoints*/step-*.tmp-*"))


def _end(run: Run, expected: Expected) -> None:
    assert_same(expected(run.scenario), run().record, f"in {run.home}")


@pytest.mark.spread
@pytest.mark.parametrize(
    "name", [NAMES[0], pytest.param(NAMES[1], marks=pytest.mark.long)]
)
def test_killed_with_a_write_in_flight(
    name: str, run_of: MakeRun, uninterrupted: Expected
):
    """It loses that write and nothing else."""
    run = run_of(name, options={"save_freq": 2}, background=True, slow_disk=SLOW)
    kills = [_kill(run, kill) for kill in POINTS]
    assert sum(killed for killed, _ in kills) >= 3
    assert any(writing for _, writing in kills)
    _end(run, uninterrupted)


@pytest.mark.spread  # `nox -s exact` kills amid writes on each backend
def test_killed_at_random_times_while_writing(run_of: MakeRun, uninterrupted: Expected):
    """Wherever the writer and the training happen to be."""
    times = random.Random(3)
    run = run_of("dense", options={"save_freq": 1, "keep": 2}, background=True)
    for slow in (0.0, 0.01, 0.03, 0.1):
        run.slow_disk = slow
        _kill(run, f"after@{times.uniform(0.1, 1.2):.4f}")
    run.slow_disk = 0.0
    _end(run, uninterrupted)


@pytest.mark.spread
def test_a_slow_disk_changes_nothing(run_of: MakeRun, uninterrupted: Expected):
    """Saves that are left out leave no trace in what is trained."""
    run = run_of("all_at_once", options={"save_freq": 1}, background=True)
    run.slow_disk = SLOW
    assert_same(uninterrupted("all_at_once"), run().record)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_killed_at_many_random_times_while_writing(
    run_of: MakeRun, uninterrupted: Expected
):
    times, killed = random.Random(4), 0
    while killed < KILLS:
        run = run_of("dense", options={"save_freq": 1, "keep": 2}, background=True)
        for _ in range(8):
            run.slow_disk = times.choice([0.0, 0.003, 0.01, 0.03, 0.1])
            killed += _kill(run, f"after@{times.uniform(0.0, 1.5):.4f}")[0]
        run.slow_disk = 0.0
        _end(run, uninterrupted)
    assert killed
