"""Killed anywhere in a run that is rolled back: the same batches are left out."""

import pytest
from support import PARTS

from resilient.telemetry.events import read_events

from .conftest import Expected, MakeRun
from .harness import assert_same

START = {"save_freq": "epoch", "on_nan": [1, 3, 9]}
OPTIONS = {"save_freq": 1, "on_nan": [1, 3, 9]}
PLACES = ["train_batch_end@0:6", "train_batch_begin@1:0", "train_batch_end@1:3"]


def rollbacks(run):
    events = list(read_events(run.home / "checkpoints"))
    return [e["from_step"] for e in events if e["event"] == "rolled back to"]


@pytest.fixture(scope="module")
def undisturbed(server_for, tmp_path_factory):
    """A run that was rolled back in each of its three epochs, and not killed."""
    from .harness import Run

    name, home = "one_bad_sample", tmp_path_factory.mktemp("rolled back")
    run = Run(server_for(name), name, home, options=OPTIONS)
    end = run()
    assert len(rollbacks(run)) >= 3
    return end


@pytest.mark.long  # `nox -s exact` kills around a rollback on each backend
def test_killed_and_stopped_around_rollbacks(run_of: MakeRun, undisturbed):
    run = run_of("one_bad_sample", options=OPTIONS)
    for place in PLACES:
        run(place)
        run(f"{place} SIGTERM")
    assert_same(undisturbed.record, run().record)


@pytest.mark.spread
@pytest.mark.parametrize(
    "kill",
    [
        pytest.param("train_batch_begin@0:0", marks=pytest.mark.long),
        "train_batch_end@0:1",
    ],
)
def test_killed_where_only_the_start_was_saved(
    kill, run_of: MakeRun, uninterrupted: Expected
):
    """It is a checkpoint like any other; another seed makes no difference."""
    run = run_of("best_weights", options=START)
    assert run(kill).killed
    assert [path.name for path in run.committed()] == ["step-00000000"]
    assert_same(uninterrupted("best_weights"), run().record)


# It moves files, whatever is in them: on the backend that is the quickest.
@pytest.mark.spread(over=["torch"])
@pytest.mark.parametrize(
    "part",
    [
        pytest.param(n, marks=[pytest.mark.long] * (n % 3 > 0))
        for n in range(len(PARTS))
    ],
)
@pytest.mark.timeout(900)
def test_killed_at_each_step_of_a_rollback(part, run_of: MakeRun, undisturbed):
    """While checkpoints are moved away, and while it is written down."""
    calls = undisturbed.calls
    written = [n for n, call in enumerate(calls, 1) if "rollbacks.json.tmp-" in call]
    first = written[0] - 8
    assert any("step-" in call for call in calls[first - 1 : written[0]])
    run = run_of("one_bad_sample", options=OPTIONS)
    for number in range(first + part, written[0] + 3, len(PARTS)):
        home = run.home.with_name(f"call-{number}")
        run.home, run.attempts = home, 0
        assert run(f"call@{number}").killed
        assert_same(undisturbed.record, run().record, f"killed at call {number}")
