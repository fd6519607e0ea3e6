"""SIGKILL while a checkpoint is being saved: never a directory that cannot be resumed.

``RESILIENT_KILLS`` is the number of kills in the long session, on each backend.
"""

import os
import random

import pytest
from support import PARTS

from resilient.storage.checkpoint import Checkpoint

from .conftest import Expected, MakeRun
from .harness import Run, assert_same

KILLS = int(os.environ.get("RESILIENT_KILLS", "1000"))
SCENARIO = "dense"
CHAIN = 8  # kills of one run, one after the other


def _check(run: Run, expected: Expected) -> None:
    """The directory can be resumed, and ends as if nothing had happened."""
    for _ in range(3):
        end = run()
        if not end.killed:
            break
    assert_same(expected(SCENARIO), end.record)


def _kill(run: Run, point: str) -> bool:
    """Whether it got there. The newest checkpoint is whole, and none is lost."""
    before = [path.name for path in run.committed()]
    killed = run(point).killed
    after = run.committed()
    assert not before or after, "the last checkpoint is lost"
    assert not before or after[-1].name >= max(before), "a commit was undone"
    assert not after or Checkpoint.read(after[-1]).verify() == []
    return killed


def _kill_during_calls(run: Run, numbers: list[int], expected: Expected) -> int:
    killed = 0
    for number in numbers:
        if not _kill(run, f"call@{number}"):
            break
        killed += 1
    _check(run, expected)
    return killed


def _one_save(run_of: MakeRun) -> tuple[int, int]:
    """From which call to which the third save of a run goes, first pruning included."""
    calls = run_of(SCENARIO, options={"save_freq": 1, "keep": 1})().calls
    commits = [
        number
        for number, call in enumerate(calls, 1)
        if call.startswith("rename") and ".tmp-" in call
    ]
    return commits[1] + 1, commits[4] + 2


# `nox -s exact` kills in saves on each backend, too, and tests/storage/ at each call.
EACH = [
    pytest.param(
        n,
        marks=[
            pytest.mark.spread(over=[name]),
            *[pytest.mark.long] * (name in PARTS[:n]),
        ],
    )
    for n, name in enumerate(PARTS)
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", EACH)
def test_killed_at_each_step_of_a_save(part: int, run_of: MakeRun, uninterrupted):
    """Before each call of a save that changes the file system, a part of them each."""
    first, last = _one_save(run_of)
    stride = max(1, (last - first) // 24)
    numbers = list(range(first, last, stride))[part :: len(PARTS)]
    killed = 0
    for start in range(0, len(numbers), CHAIN):
        run = run_of(SCENARIO, options={"save_freq": 1, "keep": 1})
        chain = numbers[start : start + CHAIN]
        killed += _kill_during_calls(run, chain, uninterrupted)
    assert killed >= min(8, len(numbers) // 2)


@pytest.mark.long  # test_in_flight.py and `nox -s exact` kill at such times, too
@pytest.mark.parametrize("seed", [0, 1])
def test_killed_at_random_times(seed: int, run_of: MakeRun, uninterrupted: Expected):
    """A parent kills whenever it likes; saves at every batch take most of the time."""
    times = random.Random(seed)
    run = run_of(SCENARIO, options={"save_freq": 1, "keep": 2})
    for _ in range(CHAIN):
        run(f"after@{times.uniform(0.0, 1.5):.4f}")
    _check(run, uninterrupted)


SHARES = range(10)  # of the kills: a share of a long session has one or two


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("share", SHARES)
def test_killed_at_each_step_of_many_saves(share: int, run_of: MakeRun, uninterrupted):
    """Half of the kills: before calls that change the file system."""
    numbers, killed = random.Random(share), 0
    while killed < KILLS / 2 / len(SHARES):
        run = run_of(SCENARIO, options={"save_freq": 1, "keep": 2})
        chain = [numbers.randint(1, 80) for _ in range(CHAIN)]
        killed += _kill_during_calls(run, chain, uninterrupted)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("share", SHARES)
def test_killed_at_random_times_in_many_saves(
    share: int, run_of: MakeRun, uninterrupted
):
    """The other half: only those count that left a save or a deletion unfinished."""
    times, killed = random.Random(share), 0
    options = {"save_freq": 1, "keep": 2}
    while killed < KILLS / 2 / len(SHARES):
        run = run_of(SCENARIO, options=options, slow_disk=0.002)
        for _ in range(CHAIN):
            before = _unfinished(run)
            point = f"save@{times.randint(1, 3)}+{times.uniform(0.0, 0.05):.4f}"
            if not _kill(run, point):
                break
            killed += bool(_unfinished(run) - before)
        _check(run, uninterrupted)


def _unfinished(run: Run) -> set[str]:
    return {path.name for path in run.home.glob("checkpoints/step-*.*-*")}
