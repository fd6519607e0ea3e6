"""Runs that are over: called again, with more epochs, with fewer; early stops."""

import pytest

from .conftest import Expected, MakeRun
from .harness import assert_same
from .record import Record

ENDS = ["dense", "all_at_once", "best_weights", "stops_in_mid_epoch", "not_a_number"]
OTHERS = [
    "swapped_moving_average",
    "moving_average",
    "custom_train_step",
    "initial_epoch",
]
# `nox -s exact` runs such as these once more, too.
LONG = {
    "dense",
    "all_at_once",
    "best_weights",
    "stops_in_mid_epoch",
    "moving_average",
    "custom_train_step",
    "initial_epoch",
}


@pytest.mark.spread
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.long] * (n in LONG)) for n in ENDS + OTHERS],
)
def test_finished_run_trains_nothing(
    name: str, run_of: MakeRun, uninterrupted: Expected
):
    """The same History, weights, callbacks and RNG again, from no batch at all."""
    run = run_of(name, options={"save_freq": "epoch"})
    run()
    again = run()
    assert again.trained == ()
    assert_same(uninterrupted(name), again.record)


@pytest.mark.long  # as `nox -s exact` does with such callbacks
def test_killed_then_finished_run_trains_nothing(
    run_of: MakeRun, uninterrupted: Expected
):
    run = run_of("all_at_once", options={"save_freq": 2})
    assert run("train_batch_end@1:4").killed
    run()
    again = run()
    assert again.trained == ()
    assert_same(uninterrupted("all_at_once"), again.record)


@pytest.mark.long  # the next one is killed besides
@pytest.mark.parametrize("name", ["dense", "convolution", "plain_attributes"])
def test_larger_epochs_continue(name: str, run_of: MakeRun, uninterrupted: Expected):
    """As if the larger number had been asked for from the start."""
    run = run_of(name, options={"save_freq": 3})
    run(epochs=2)
    more = run(epochs=4)
    assert [epoch for epoch, batch in more.trained if batch == 0] == [2, 3]
    assert_same(uninterrupted(name, epochs=4), more.record)


@pytest.mark.spread
def test_larger_epochs_continue_a_killed_run(run_of: MakeRun, uninterrupted: Expected):
    run = run_of("dense", options={"save_freq": 3})
    assert run("train_batch_end@0:5", epochs=2).killed
    assert run("train_batch_end@2:5", epochs=4).killed
    assert_same(uninterrupted("dense", epochs=4), run(epochs=4).record)


@pytest.mark.spread
@pytest.mark.parametrize("epochs", [1, pytest.param(2, marks=pytest.mark.long)])
def test_smaller_epochs_train_nothing(epochs: int, run_of: MakeRun):
    """The weights and the History stay those of the longer run."""
    run = run_of("dense", options={"save_freq": 3})
    full = run()
    fewer = run(epochs=epochs)
    assert fewer.trained == ()
    assert_same(_but_epochs(full.record), _but_epochs(fewer.record))


def _but_epochs(record: Record) -> Record:
    return {key: leaf for key, leaf in record.items() if "params.epochs" not in key}


@pytest.mark.long  # `nox -s exact` runs those that stopped early once more, too
@pytest.mark.parametrize("name", ["all_at_once", "stops_in_mid_epoch", "not_a_number"])
def test_early_stop_stays_stopped(name: str, run_of: MakeRun):
    """A run that stopped by itself is over, though not all epochs were trained."""
    run = run_of(name, options={"save_freq": 3})
    first = run()
    assert first.record["model.stop_training"] == "bool True"
    for _ in range(2):
        again = run()
        assert again.trained == ()
        assert_same(first.record, again.record)
