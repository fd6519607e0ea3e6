"""Every scenario: left alone it is ``model.fit``; killed, it is that all the same."""

import pytest

from .conftest import Expected, MakeRun
from .harness import assert_same
from .scenarios import SCENARIOS


@pytest.mark.long  # the next one compares with plain model.fit, too
def test_uninterrupted_run_is_model_fit(
    scenario: str, run_of: MakeRun, uninterrupted: Expected
):
    """Saving changes no byte of what training leaves."""
    leave_alone(scenario, run_of, uninterrupted)


def leave_alone(scenario: str, run_of: MakeRun, uninterrupted: Expected) -> None:
    run = run_of(scenario, options={"save_freq": SCENARIOS[scenario].save_freq})
    assert_same(uninterrupted(scenario), run().record)


def test_killed_run_ends_as_the_uninterrupted_one(
    scenario: str, run_of: MakeRun, uninterrupted: Expected
):
    """SIGKILL, once or several times, and nothing tells the difference."""
    kill_and_resume(scenario, run_of, uninterrupted)


def in_background(scenario: str) -> bool:
    """Every other scenario is killed while it trains on beside its saves."""
    return list(SCENARIOS).index(scenario) % 2 == 1


def kill_and_resume(scenario: str, run_of: MakeRun, uninterrupted: Expected) -> None:
    known = SCENARIOS[scenario]
    options = {"save_freq": known.save_freq}
    run = run_of(scenario, options=options, background=in_background(scenario))
    for kill in known.kills:
        assert run(kill).killed, f"{kill} was never reached"
    assert run.committed(), "killed before the first checkpoint: nothing was resumed"
    assert_same(uninterrupted(scenario), run().record)
