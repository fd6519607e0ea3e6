"""Random schedules of interruptions: kills, save policies, steps per execution."""

import os
from typing import Any

import keras
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .conftest import Expected, MakeRun
from .harness import assert_same

BACKEND = keras.backend.backend()
TORCH = BACKEND == "torch"
FEW = {"torch": 8, "jax": 4, "tensorflow": 2}[BACKEND]  # which take as long
EXAMPLES = int(os.environ.get("RESILIENT_KILLS", "300"))
NAMES = ["best_weights", "plain_attributes", "fewer_steps_than_batches"]

batches = st.builds(
    "train_batch_end@{}:{}".format, st.integers(0, 3), st.integers(0, 6)
)
others = st.sampled_from(
    ["train_begin", "epoch_begin@1", "epoch_end@0", "test_batch_end@1:0", "train_end"]
)
intervals = st.fixed_dictionaries(
    {}, optional={"steps": st.integers(1, 9), "epochs": st.integers(1, 3)}
).filter(bool)
save_freqs = st.one_of(
    st.integers(1, 7),
    st.just("epoch"),
    st.lists(intervals, min_size=1, max_size=2),
    st.just([{"epochs": 2}, {"seconds": 0.05}]),
)
schedules: dict[str, st.SearchStrategy[Any]] = {
    "name": st.sampled_from(NAMES),
    "kills": st.lists(st.one_of(batches, batches, others), min_size=1, max_size=4),
    "save_freq": save_freqs,
    "background": st.booleans(),
    "executions": st.just(1) if TORCH else st.sampled_from([1, 1, 1, 2, 3, 5, 7]),
}
steady = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def interrupt(
    run_of: MakeRun, uninterrupted: Expected, schedule: dict[str, Any]
) -> None:
    name, executions = schedule["name"], schedule.get("executions", 1)
    settings = {} if executions == 1 else {"steps_per_execution": executions}
    options = {"save_freq": schedule["save_freq"]}
    background = schedule["background"]
    run = run_of(name, compile=settings, options=options, background=background)
    for kill in schedule["kills"]:
        if not run(kill).killed:  # the run ended before that point
            break
    assert_same(uninterrupted(name, compile=settings), run().record, f"in {run.home}")


@pytest.mark.long  # `nox -s exact` has a schedule of kills for each program
@pytest.mark.timeout(1500)
@settings(steady, max_examples=FEW)
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
