"""The harness itself can be trusted: it sees one bit, and its kills are real."""

import numpy as np
import pytest

from .conftest import Expected, MakeRun
from .harness import assert_same
from .record import differences, flatten, load, save


def test_record_differs_by_one_bit_dtype_type_order_and_length(tmp_path):
    """Whatever is not the same bytes and types is a difference."""
    import ml_dtypes

    one = {
        "weights": np.arange(4, dtype="float32"),
        "half": np.ones(2, ml_dtypes.bfloat16),
        "list": [1, 2.0, float("nan"), None, ()],
        "dict": {"a": 1, "b": {2}},
    }
    record = dict(flatten(one, "it"))
    save(record, tmp_path / "record")
    assert differences(record, load(tmp_path / "record")) == []
    bit = np.arange(4, dtype="float32")
    bit.view("u1")[0] ^= 1
    others = [
        one | {"weights": bit},
        one | {"weights": np.arange(4, dtype="float64")},
        one | {"list": [1, 2, float("nan"), None, ()]},
        one | {"list": [1, 2.0, float("nan"), None, ()][:4]},
        one | {"list": (1, 2.0, float("nan"), None, ())},
        one | {"dict": {"b": {2}, "a": 1}},
        {key: one[key] for key in list(one)[:3]},
    ]
    for other in others:
        assert differences(record, dict(flatten(other, "it")))


@pytest.mark.long
def test_uninterrupted_scenario_is_deterministic(
    scenario: str, run_of: MakeRun, uninterrupted: Expected
):
    """Otherwise equal bytes after a resume would be luck."""
    assert_same(uninterrupted(scenario), run_of(scenario)(mode="keras").record)


@pytest.mark.spread
@pytest.mark.parametrize(
    "kill",
    [
        "train_begin",
        pytest.param("train_batch_end@0:2", marks=pytest.mark.long),
        pytest.param("epoch_end@1", marks=pytest.mark.long),
        "after@0.0",
    ],
)
def test_kill_is_a_real_one(kill: str, run_of: MakeRun):
    """The attempt's process ends by SIGKILL, before ``fit`` returns."""
    assert run_of("best_weights")(kill, mode="keras").killed


@pytest.mark.spread
def test_record_holds_every_part(uninterrupted: Expected):
    """No group of the state is forgotten by the record."""
    record = uninterrupted("all_at_once")
    for path in (
        "variables.trainable[0]",
        "variables.non_trainable[0]",
        "variables.optimizer[0]",
        "variables.metrics[0]",
        "history.history.val_loss[1]",
        "history.epoch[1]",
        "history.params.epochs",
        "callbacks[0][1].best_weights[0]",
        "callbacks[0][1].wait",
        "callbacks[3][1].keys[0]",
        "callbacks[9][1].seen[3][1].loss",
        "random.python[1][0]",
        "random.numpy[1]",
        "files.log.csv",
    ):
        assert path in record, sorted(record)
