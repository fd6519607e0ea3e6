"""Runs that nobody seeded resume as exactly, though no run can be compared with them.

Rolling back to a step of a run that was left alone must lead to that run's own end.
"""

import pytest

from .conftest import MakeRun
from .harness import ANY, assert_same


@pytest.mark.spread
@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("dense", [3, 14]),
        ("shuffled_in_batches_with_class_weight", [10]),
        pytest.param("fewer_steps_than_batches", [5], marks=pytest.mark.long),
        pytest.param("convolution", [8], marks=pytest.mark.long),
    ],
)
def test_rolled_back_run_ends_as_it_did(name: str, steps: list[int], run_of: MakeRun):
    """The order of the data and every random number come out of the checkpoint."""
    roll_back(name, steps, run_of)


def roll_back(name: str, steps: list[int], run_of: MakeRun) -> None:
    run = run_of(name, options={"save_freq": 1, "keep": 100})
    first = run(seed=ANY)
    for step in reversed(steps):
        run.options["resume"] = step
        again = run(seed=ANY)
        assert again.trained
        assert_same(first.record, again.record, f"after step {step}")
    assert run.home.joinpath("checkpoints", "quarantine").is_dir()
