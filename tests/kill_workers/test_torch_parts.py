"""Training in several processes on torch, part by part; one gang does it all."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

if os.environ["KERAS_BACKEND"] != "torch":
    pytest.skip("only with the torch backend", allow_module_level=True)

import scipy.sparse
import torch
import torch_parts
from support import gang

from resilient import keras_internals
from resilient.distributed.strategies.torch import (
    is_own_part,
    part,
    require_divisible,
    rows,
)
from resilient.errors import NotSupportedError

pytestmark = [
    pytest.mark.xdist_group("torch parts"),
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't"),
]


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What each rank's cases returned, by case."""
    if keras_internals.generation.trains_on_ranks:
        pytest.skip("there Keras averages gradients by itself")
    file = tmp_path_factory.mktemp("gang") / "told"
    gang.run(Path(torch_parts.__file__), file, timeout=280).check()
    ranks = [json.loads(Path(f"{file}.{rank}").read_text()) for rank in range(2)]
    return {name: [rank[name] for rank in ranks] for name in ranks[0]}


def test_two_processes_train_as_one_where_sums_are_exact(told):
    """History, weights, and the state of torch's generator after an epoch's shuffle."""
    alone = torch_parts.exact()
    for rank in told["case_exact"]:
        for name in ("history", "weights", "random"):
            assert rank[name] == alone[name]


def test_each_rank_keeps_its_own_counts(told):
    alone = torch_parts.exact()["counts"]
    first, second = (rank["counts"] for rank in told["case_exact"])
    assert first != second
    merged = [np.add(*pair).tolist() for pair in zip(first, second, strict=True)]
    assert merged == alone


def test_nothing_is_left_on_the_model(told):
    assert [rank["left"] for rank in told["case_exact"]] == [[], []]


@pytest.mark.parametrize(
    "case",
    [
        "adam",
        "all_options",
        "loss_scale",
        "gradients_on_one_rank",
        "two_passes",
        "two_optimizers",
    ],
)
def test_all_ranks_hold_equal_bytes(told, case):
    first, second = told[f"case_{case}"]
    assert "trained" in first
    for name in set(first) - {"own"}:
        assert first[name] == second[name], name


def test_statistics_and_seeds_stay_each_ranks_own(told):
    first, second = told["case_adam"]
    assert first["own"] != second["own"]


def test_ranks_agree_that_gradients_are_not_finite(told):
    assert {rank["scale"] for rank in told["case_loss_scale"]} == {4.0}
    assert {rank["iterations"] for rank in told["case_loss_scale"]} == {6}


def test_a_weight_without_gradient_on_any_rank_is_left_alone(told):
    unused = [rank["unused"] for rank in told["case_gradients_on_one_rank"]]
    assert unused == [[1.0] * 3] * 2


def test_gradients_that_cannot_be_averaged_are_refused(told):
    for found in told["case_gradient_errors"]:
        assert "torch.sparse_coo" in found["sparse"]
        assert "torch.float64, for" in found["dtype"]
        assert "not at the same step" in found["others"]
        assert "overwrites the variable" in found["overwriting"]
        assert "with reduction='sum'" in found["sum"]
        assert "activity_regularizer of" in found["activity"]
        assert found["mean"] == "no error"


def test_sharded_parameters_are_refused(told):
    for found in told["case_sharded"]:
        assert found["before"] == "no error"
        assert "DTensor" in found["sharded"]


def test_every_rank_gets_the_values_of_rank_0(told):
    zeros = [[[0.0, 0.0]] * 3] * 3 + [[[0, 0]] * 3] + [[[False, False]] * 3]
    for values in told["case_broadcast"]:
        assert values == [*zeros, 0, [], [[0, 0]] * 3]


def test_logs_that_are_no_metrics_are_averaged_and_said_so(told):
    for found in told["case_logs"]:
        assert found["own"] == {"mine": [0.5], "ours": [2.0]}
        assert len(found["said"]) == 1
        assert "mine" in found["said"][0]
        assert "text, of type" in found["text"] or "mine, of type" in found["text"]


def test_metrics_that_cannot_be_merged_are_refused(told):
    for found in told["case_logs"]:
        assert "outside its variables" in found["hidden"]
        assert "aggregation='none'" in found["none"]


@pytest.mark.parametrize("shuffle", ["True", "batch", "False"])
def test_ranks_share_an_order_and_keep_their_own_random_state(told, shuffle):
    ranks = [rank[shuffle] for rank in told["case_order"]]
    drawn, after = [], []
    for seed in range(2):
        torch.manual_seed(seed)
        own = {"True": True, "batch": "batch", "False": False}[shuffle]
        data = torch_parts.RankArrays(
            np.arange(12), batch_size=4, shuffle=own, rank=0, world=1, share=str
        )
        drawn.append([batch.tolist() for batch in data.get_torch_dataloader()])
        after.append(torch.randint(1000, (1,)).item())
    parts = [a + b for a, b in zip(ranks[0][0], ranks[1][0], strict=True)]
    assert parts == drawn[0]
    assert [rank[1] for rank in ranks] == after


# Slices, in one process -------------------------------------------------------------


def test_rows_are_contiguous_and_cover_the_batch():
    assert [rows(6, rank, 3) for rank in range(3)] == [
        slice(0, 2),
        slice(2, 4),
        slice(4, 6),
    ]


@pytest.mark.parametrize(("size", "world"), [(5, 2), (0, 2), (2, 4)])
def test_rows_that_cannot_be_divided_are_refused(size, world):
    with pytest.raises(ValueError, match=f"batch of {size} rows, {world} processes"):
        rows(size, 0, world)


@pytest.mark.parametrize(
    ("samples", "batch", "message"),
    [
        (20, 5, "a batch of 5"),
        (21, 4, "epoch, of 1"),
        (3, 32, "epoch, of 3"),
    ],
)
def test_an_epoch_that_cannot_be_divided_is_refused_before_it_begins(
    samples, batch, message
):
    with pytest.raises(ValueError, match=message):
        require_divisible(samples, batch, 2)


def test_an_epoch_that_can_be_divided_is_accepted():
    for samples, batch in [(20, 4), (22, 4), (6, 32), (6, 7)]:
        require_divisible(samples, batch, 2)


def test_a_batch_is_sliced_leaf_by_leaf():
    x = np.arange(8).reshape(4, 2)
    sparse = scipy.sparse.csr_matrix(x)
    batch = ({"a": x, "b": torch.as_tensor(x)}, [sparse, None], None)
    first, second, third = part(batch, 1, 2)
    np.testing.assert_array_equal(first["a"], x[2:])
    np.testing.assert_array_equal(first["b"], x[2:])
    np.testing.assert_array_equal(second[0].toarray(), x[2:])
    assert second[1] is third is None


@pytest.mark.parametrize(
    "leaf",
    [
        torch.eye(4).to_sparse(),
        np.float32(1),
        3.0,
        "text",
    ],
)
def test_what_has_no_rows_is_refused(leaf):
    with pytest.raises(NotSupportedError, match="cannot be split"):
        part((leaf,), 0, 2)


def test_leaves_of_different_lengths_are_refused():
    with pytest.raises(NotSupportedError, match="arrays of 2, 4 rows"):
        part((np.zeros(4), np.zeros(2)), 0, 2)


def test_a_distributed_sampler_gives_the_ranks_part_already():
    data = torch.utils.data.TensorDataset(torch.zeros(8))
    sampler = torch.utils.data.DistributedSampler(data, num_replicas=2, rank=1)
    loader = torch.utils.data.DataLoader(data, sampler=sampler)
    assert is_own_part(loader, 1, 2)
    assert not is_own_part(torch.utils.data.DataLoader(data), 1, 2)
    with pytest.raises(NotSupportedError, match="rank=1, num_replicas=2"):
        is_own_part(loader, 0, 2)
