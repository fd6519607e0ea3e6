"""Every source of data: left alone ``model.fit``; killed, the same all the same."""

import keras
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .conftest import Expected, MakeRun
from .harness import assert_same
from .scenarios import SCENARIOS
from .test_scenarios import kill_and_resume, leave_alone
from .test_schedules import (
    EXAMPLES,
    FEW,
    batches,
    interrupt,
    others,
    save_freqs,
    steady,
)

pytestmark = pytest.mark.sources


@pytest.mark.long  # the next one compares with plain model.fit, too
def test_uninterrupted_run_is_model_fit(
    source: str, run_of: MakeRun, uninterrupted: Expected
):
    """Following the data changes no byte of what training leaves."""
    leave_alone(source, run_of, uninterrupted)


def test_killed_run_ends_as_the_uninterrupted_one(
    source: str, run_of: MakeRun, uninterrupted: Expected
):
    """SIGKILL, twice in one epoch and between two: every sample in the same order."""
    kill_and_resume(source, run_of, uninterrupted)


@pytest.mark.long
def test_resumed_at_an_epochs_end(
    source: str, run_of: MakeRun, uninterrupted: Expected
):
    """The order of later epochs is that of the uninterrupted run, too."""
    run = run_of(source, options={"save_freq": "epoch"})
    assert run("train_batch_end@1:1").killed
    assert_same(uninterrupted(source), run().record)


SOURCES = [
    scenario.name
    for scenario in SCENARIOS.values()
    if scenario.source and keras.backend.backend() in scenario.backends
]
schedules = {
    "name": st.sampled_from(SOURCES),
    "kills": st.lists(st.one_of(batches, batches, others), min_size=1, max_size=4),
    "save_freq": save_freqs,
    "background": st.booleans(),
}


@pytest.mark.spread(over=["torch"])  # where it is the quickest
@pytest.mark.timeout(1500)
@settings(steady, max_examples=FEW // 2)
@given(**schedules)
def test_any_schedule(run_of: MakeRun, uninterrupted: Expected, **schedule):
    """1 to 4 kills at random batches, any policy: the uninterrupted run's bytes."""
    interrupt(run_of, uninterrupted, schedule)


@pytest.mark.long
@pytest.mark.timeout(7200)
@settings(steady, max_examples=EXAMPLES)
@given(**schedules)
def test_many_schedules(run_of: MakeRun, uninterrupted: Expected, **schedule):
    interrupt(run_of, uninterrupted, schedule)
