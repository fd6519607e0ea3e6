"""Asked to stop anywhere: it saves the state of that very batch, and goes on there.

A kill loses what was trained since the last checkpoint; a request to stop loses
nothing.
"""

from typing import Any

import pytest

from resilient.telemetry.events import read_events

from .conftest import Expected, MakeRun
from .harness import assert_same

# best_weights: 7 batches an epoch, validation, an early stop after four epochs. Where
# the signal comes, and the step that is saved then: None where nothing was trained.
PLACES = [
    ("train_begin", None),
    ("epoch_begin@0", 1),
    ("train_batch_begin@0:0", 1),
    ("train_batch_end@0:0/first", 1),
    ("train_batch_end@0:3", 4),
    ("train_batch_end@0:6", 7),
    ("test_batch_end@0:0", 7),
    ("epoch_end@0/first", 7),
    ("epoch_end@0", 7),
    ("epoch_begin@1/first", 8),
    ("train_batch_end@2:4", 19),
]
AT_THE_END = ["epoch_end@3/first", "epoch_end@3", "train_end/first", "train_end"]
# As others here, or as `nox -s exact` stops it on each backend.
LONG = {
    "epoch_begin@0",
    "train_batch_end@0:0/first",
    "train_batch_end@0:3",
    "train_batch_end@0:6",
    "epoch_end@0/first",
    "epoch_end@0",
    "epoch_begin@1/first",
    "train_batch_end@2:4",
    "epoch_end@3",
    "train_end/first",
    "train_end",
}


def some(places: list[Any]) -> list[Any]:
    """The short session has those that differ in kind."""
    at = [each if isinstance(each, tuple) else (each,) for each in places]
    return [pytest.param(*x, marks=[pytest.mark.long] * (x[0] in LONG)) for x in at]


def steps(run):
    return [int(path.name.removeprefix("step-")) for path in run.committed()]


def endings(run):
    """The "preempted" events of a run, as (reason, step, saved)."""
    events = list(read_events(run.home / "checkpoints"))
    found = [event for event in events if event["event"] == "preempted"]
    return [(event["reason"], event["step"], event["saved"]) for event in found]


@pytest.mark.spread
@pytest.mark.parametrize(("place", "step"), some(PLACES))
def test_stopped_anywhere(place, step, run_of: MakeRun, uninterrupted: Expected):
    """No batch is trained twice, none is left out, and the bytes are the same."""
    run = run_of("best_weights", options={"save_freq": "epoch"})
    assert run(f"{place} SIGTERM").status == 143
    assert steps(run)[-1:] == ([] if step is None else [step])
    assert endings(run) == [("SIGTERM", step or 0, step is not None)]
    end = run()
    assert_same(uninterrupted("best_weights"), end.record)
    assert end.trained[0] == divmod(step or 0, 7)


@pytest.mark.spread
@pytest.mark.parametrize("place", some(AT_THE_END))
def test_stopped_when_all_is_trained(place, run_of: MakeRun, uninterrupted: Expected):
    """The run is finished, and the process ends all the same."""
    run = run_of("best_weights", options={"save_freq": "epoch"})
    assert run(f"{place} SIGTERM").status == 143
    assert endings(run) == [("SIGTERM", 28, True)]
    end = run()
    assert_same(uninterrupted("best_weights"), end.record)
    assert end.trained == ()


@pytest.mark.spread
@pytest.mark.parametrize(
    ("name", "status"),
    [pytest.param("SIGINT", 130, marks=pytest.mark.long), ("SIGUSR1", 143)],
)
def test_stopped_by_other_signals(
    name, status, run_of: MakeRun, uninterrupted: Expected
):
    run = run_of("best_weights", options={"save_freq": "epoch"})
    assert run(f"train_batch_end@1:2 {name}").status == status
    assert endings(run) == [(name, 10, True)]
    assert_same(uninterrupted("best_weights"), run().record)


@pytest.mark.long  # as `nox -s exact` does on each backend
def test_stopped_and_killed_in_turn(run_of: MakeRun, uninterrupted: Expected):
    run = run_of("best_weights", options={"save_freq": "epoch"})
    for place in ("train_batch_end@0:2 SIGTERM", "train_batch_end@0:5"):
        run(place)
    assert run("train_batch_end@0:4 SIGTERM").status == 143
    assert steps(run)[-1] == 5
    assert run("test_batch_end@1:0").killed
    assert run("train_batch_end@1:1 SIGINT").status == 130
    assert_same(uninterrupted("best_weights"), run().record)
