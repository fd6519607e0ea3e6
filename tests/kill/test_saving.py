"""SIGKILL while a checkpoint is being saved: never a directory that cannot be resumed.

``RESILIENT_KILLS`` is the number of kills of each kind in the long session.
"""

import os
import random

import pytest
from support import PARTS

from .conftest import Expected, MakeRun
from .harness import Run, assert_same

KILLS = int(os.environ.get("RESILIENT_KILLS", "300"))
SCENARIO = "dense"
CHAIN = 8  # kills of one run, one after the other


def _check(run: Run, expected: Expected) -> None:
    """The directory can be resumed, and ends as if nothing had happened."""
    for _ in range(3):
        end = run()
        if not end.killed:
            break
    assert_same(expected(SCENARIO), end.record)


def _kill_during_calls(run: Run, numbers: list[int], expected: Expected) -> int:
    killed = 0
    for number in numbers:
        before = [path.name for path in run.committed()]
        end = run(f"call@{number}")
        killed += end.killed
        after = [path.name for path in run.committed()]
        assert not before or after, "the last checkpoint is lost"
        assert not before or max(after) >= max(before), "a commit was undone"
        if not end.killed:
            break
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


EACH = [
    pytest.param(n, marks=pytest.mark.spread(over=[name]))
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


@pytest.mark.spread
@pytest.mark.parametrize("seed", range(2))
def test_killed_at_random_times(seed: int, run_of: MakeRun, uninterrupted: Expected):
    """A parent kills whenever it likes; saves at every batch take most of the time."""
    times = random.Random(seed)
    run = run_of(SCENARIO, options={"save_freq": 1, "keep": 2})
    for _ in range(CHAIN):
        run(f"after@{times.uniform(0.0, 1.5):.4f}")
    _check(run, uninterrupted)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_killed_at_each_step_of_many_saves(run_of: MakeRun, uninterrupted: Expected):
    numbers = random.Random(1)
    killed = 0
    while killed < KILLS:
        run = run_of(SCENARIO, options={"save_freq": 1, "keep": 2})
        chain = [numbers.randint(1, 80) for _ in range(CHAIN)]
        killed += _kill_during_calls(run, chain, uninterrupted)
    assert killed


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_killed_at_many_random_times(run_of: MakeRun, uninterrupted: Expected):
    times, killed = random.Random(2), 0
    for _ in range(KILLS // CHAIN):
        run = run_of(SCENARIO, options={"save_freq": 1, "keep": 2})
        for _ in range(CHAIN):
            killed += run(f"after@{times.uniform(0.0, 1.5):.4f}").killed
        _check(run, uninterrupted)
    assert killed
