"""What another number of replicas, or of processes, begins with."""

from dataclasses import replace

import numpy as np
import pytest

from resilient import DataNotResumableError, NotExactWarning, NotSupportedError
from resilient.saving.record import SavedState
from resilient.saving.reshard import (
    ReplicaRemap,
    require_same_batches,
    reshard_processes,
)
from resilient.saving.run_json import LoopRun
from resilient.serialization.json_values import encode
from resilient.serialization.position import DataPosition, Positions, TrainingPosition
from resilient.serialization.schema import to_json

pytestmark = pytest.mark.once

TENSORS = {
    "trainable.0000.kernel": np.float32([1, 2]),
    "non_trainable.0000.mean.replica_0": np.float32([1, 5]),
    "non_trainable.0000.mean.replica_1": np.float32([3, 6]),
    "non_trainable.0001.seed.replica_0": np.uint32([7, 1]),
    "non_trainable.0001.seed.replica_1": np.uint32([7, 9]),
    "metrics.0000.total.replica_0": np.float32(10),
    "metrics.0000.total.replica_1": np.float32(20),
    "extra.0000.ours.replica_0": np.float32(1),
    "extra.0000.ours.replica_1": np.float32(2),
    "extra.0001.same.replica_0": np.float32(4),
    "extra.0001.same.replica_1": np.float32(4),
}


def given(name, tensors=TENSORS, saved=2):
    value = ReplicaRemap(tensors, saved)[name]
    assert isinstance(value, np.ndarray | np.generic)
    return value.tolist(), str(value.dtype)


def test_what_all_have_in_common_is_as_it_was():
    assert given("trainable.0000.kernel") == ([1, 2], "float32")


def test_what_metrics_counted_is_not_lost_or_doubled():
    assert given("metrics.0000.total") == (30, "float32")
    found = [given(f"metrics.0000.total.replica_{k}")[0] for k in range(3)]
    assert found == [30, 0, 0]


def test_statistics_are_the_mean_of_those_before():
    assert given("non_trainable.0000.mean") == ([2, 5.5], "float32")
    for replica in range(4):
        name = f"non_trainable.0000.mean.replica_{replica}"
        assert given(name) == ([2, 5.5], "float32")


def test_seeds_go_round():
    assert given("non_trainable.0001.seed") == ([7, 1], "uint32")
    found = [given(f"non_trainable.0001.seed.replica_{k}")[0] for k in range(3)]
    assert found == [[7, 1], [7, 9], [7, 1]]


def test_one_replica_becomes_several():
    one = {"metrics.0000.total": np.float32(5), "non_trainable.0000.mean": np.ones(2)}
    found = [
        given(f"metrics.0000.total.replica_{k}", one, saved=1)[0] for k in range(2)
    ]
    assert found == [5, 0]
    assert given("non_trainable.0000.mean.replica_1", one, saved=1)[0] == [1, 1]


def test_what_no_rule_is_for_is_refused_unless_all_had_the_same():
    assert given("extra.0001.same.replica_2") == (4, "float32")
    with pytest.raises(NotSupportedError, match="no rule says") as found:
        given("extra.0000.ours")
    assert "Received: extra.0000.ours, 2 replicas" in str(found.value)


def test_what_is_not_there_is_missing():
    with pytest.raises(KeyError):
        ReplicaRemap(TENSORS, 2)["trainable.0009.gone"]


FACTS = {name: {} for name in ("random", "fingerprint", "setups", "objects")} | {
    "stopped": False,
    "counting": "loop",
    "history": None,
    "data": None,
}


def training(**facts):
    """A position of training data."""
    return TrainingPosition(**({"held": True, "drawn_by_all": True} | facts))


def part(random=1, **data):
    arrays = {}
    x = training(data=DataPosition(**({"drawn": 3, "source": {}} | data)))
    encoded = encode(to_json(Positions(x=x)), arrays, "data")
    return SavedState(LoopRun(**FACTS | {"random": {"seed": random}}), encoded, arrays)


def test_processes_at_one_place_are_followed_by_any_number():
    parts = [part(source={"order": np.arange(4)}) for _ in range(2)]
    found = reshard_processes(parts)
    assert found.run == parts[0].run
    assert found.positions().x.elsewhere


@pytest.mark.parametrize("length", [4, 10_000])
def test_processes_at_different_places_are_refused(length):
    """Also where the place is a large array, which is not in the JSON."""
    same = [part(source={"order": np.arange(length)}) for _ in range(2)]
    assert reshard_processes(same).run == same[0].run
    parts = [part(source={"order": np.arange(length) + k}) for k in range(2)]
    with pytest.raises(DataNotResumableError, match="its own part of the data"):
        reshard_processes(parts)


def test_of_a_pipeline_its_own_batches_do_not_count():
    """Every process has another iterator's state, and another last batch."""
    parts = [
        part(
            drawn=2,
            given=3,
            pending=[np.ones(k + 1)],
            last=f"{k}",
            source={"seeds": [1], "begun": {"x": 1}, "state": np.arange(k + 9)},
        )
        for k in range(2)
    ]
    x = reshard_processes(parts).positions().x
    assert x.data == DataPosition(
        drawn=2, given=2, source={"seeds": [1], "begun": {"x": 1}}
    )


def test_what_differs_besides_is_said():
    with pytest.warns(NotExactWarning, match=r"those of process 0:\n  random"):
        reshard_processes([part(), part(random=2)])


def test_data_in_parts_cannot_be_divided_anew():
    data = DataPosition(drawn=0, source={})
    elsewhere = training(data=data, elsewhere=True)
    parts = training(data=data, drawn_by_all=False)
    require_same_batches(parts, drawn_by_all=False)
    require_same_batches(elsewhere, drawn_by_all=True)
    with pytest.raises(DataNotResumableError, match="data in parts now"):
        require_same_batches(elsewhere, drawn_by_all=False)
    before = replace(parts, elsewhere=True)
    with pytest.raises(DataNotResumableError, match="when the checkpoint was saved"):
        require_same_batches(before, drawn_by_all=True)


@pytest.mark.parametrize("before", [True, False])
def test_data_that_is_divided_otherwise_is_refused(before):
    """As Keras does on torch since 3.16, in as many processes."""
    position = training(data=DataPosition(drawn=0, source={}), drawn_by_all=before)
    require_same_batches(position, drawn_by_all=before)
    with pytest.raises(DataNotResumableError, match="split the data differently"):
        require_same_batches(position, drawn_by_all=not before)
