"""Every place where a kill can hit one run, and several kills of one run."""

import pytest

from .conftest import Expected, MakeRun
from .harness import assert_same

# best_weights validates, stops early and restores the best weights at its end. Half of
# the kills come while it trains on beside its saves.
PLACES = [
    "train_begin",
    "epoch_begin@0",
    "train_batch_begin@0:0",
    "train_batch_end@0:0",
    "train_batch_end@0:6",
    "test_batch_end@0:0",
    "epoch_end@0/first",
    "epoch_end@0",
    "epoch_begin@1/first",
    "train_batch_begin@1:0",
    "train_batch_end@1:0",
    "test_batch_end@1:0/first",
    "epoch_end@3/first",
    "epoch_end@3",
    "train_end/first",
    "train_end",
]
# As others here, or as `nox -s exact` kills: at ends of batches, epochs and trainings.
LONG = {
    "epoch_begin@0",
    "train_batch_end@0:0",
    "train_batch_end@0:6",
    "epoch_end@0/first",
    "epoch_end@0",
    "epoch_begin@1/first",
    "train_batch_begin@1:0",
    "train_batch_end@1:0",
    "test_batch_end@1:0/first",
    "epoch_end@3",
    "train_end",
}
EACH = [
    pytest.param(place, marks=[pytest.mark.long] * (place in LONG)) for place in PLACES
]
SEVERAL = [
    ["train_batch_end@1:2", "train_batch_end@1:5"],
    ["train_batch_end@1:3", "train_batch_end@1:3"],
    ["train_batch_end@0:1", "train_batch_end@1:3", "train_batch_end@2:5"],
    ["test_batch_end@0:0", "epoch_begin@1", "train_batch_begin@1:1"],
    ["epoch_end@1", "epoch_begin@2", "train_begin", "train_batch_end@2:0"],
    ["train_end/first", "train_end", "train_end"],
]


def _id(kills: list[str]) -> str:
    return " ".join(kills)


@pytest.mark.spread
@pytest.mark.parametrize("kill", EACH)
def test_killed_anywhere(kill: str, run_of: MakeRun, uninterrupted: Expected):
    """The same bytes, wherever the kill hits."""
    background = PLACES.index(kill) % 2 == 1
    run = run_of("best_weights", options={"save_freq": 1}, background=background)
    assert run(kill).killed
    assert_same(uninterrupted("best_weights"), run().record)


@pytest.mark.long  # `nox -s exact` does so on each backend
@pytest.mark.parametrize("kill", [PLACES[9], PLACES[13]])
def test_killed_with_saves_at_epochs_ends_only(
    kill: str, run_of: MakeRun, uninterrupted: Expected
):
    """Up to an epoch is trained again, and nothing tells."""
    run = run_of("best_weights", options={"save_freq": "epoch"})
    assert run(kill).killed
    assert_same(uninterrupted("best_weights"), run().record)


@pytest.mark.spread
@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(kills, marks=[pytest.mark.long] * (n != 5))
        for n, kills in enumerate(SEVERAL)
    ],
    ids=_id,
)
def test_killed_several_times(kills, run_of: MakeRun, uninterrupted: Expected):
    """Twice in one epoch, at one batch again and again, three times in a row."""
    background = SEVERAL.index(kills) % 2 == 1
    run = run_of("best_weights", options={"save_freq": 1}, background=background)
    for kill in kills:
        assert run(kill).killed
    assert_same(uninterrupted("best_weights"), run().record)


@pytest.mark.spread
def test_no_batch_before_the_checkpoint_is_trained_again(run_of: MakeRun):
    """An attempt begins at the first batch that no checkpoint covers."""
    run = run_of("dense", options={"save_freq": 2})
    assert run("train_batch_end@1:4").killed
    # 12 batches were trained; the 12th was not yet saved, the 11th is the odd one.
    assert run().trained[:2] == ((1, 3), (1, 4))


@pytest.mark.long  # test_saving.py and test_in_flight.py see to it as well
def test_steps_never_go_backwards(run_of: MakeRun):
    """What is committed survives every kill."""
    run = run_of("dense", options={"save_freq": 1, "keep": 2})
    newest = ""
    for kill in ("train_batch_end@0:4", "train_batch_end@0:4", "epoch_begin@1"):
        assert run(kill).killed
        names = [path.name for path in run.committed()]
        assert len(names) == 2
        assert newest <= names[-1]
        newest = names[-1]
