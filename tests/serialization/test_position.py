"""What the position of data is in a process of another backend."""

import pytest

from resilient.errors import DataNotResumableError
from resilient.serialization.position import DataPosition

pytestmark = pytest.mark.once


def pipeline(**fields):
    source = {"seeds": [], "lasting": {}, "state": b"", "begun": {}, "first": "one"}
    return DataPosition(source=source, **fields)


def test_what_tensorflow_trained_of_a_pipeline_is_what_it_gave():
    found = pipeline(drawn=3, last="two").switched_from("tensorflow")
    assert found.given == 3
    assert found.source == {"seeds": [], "lasting": {}, "state": b"", "begun": {}}
    assert pipeline(drawn=0).switched_from("tensorflow").given is None


def arrays(order, drawn):
    source = {"drawn_from": "NumPy", "order": order}
    return DataPosition(drawn=drawn, source=source)


def replayed(given):
    return DataPosition(drawn=given, given=given, source={"seeds": [], "begun": {}})


@pytest.mark.parametrize(
    "position",
    [
        pytest.param(arrays({"keras": 3}, 2), id="a shuffled array"),
        pytest.param(replayed(2), id="a pipeline that is replayed"),
        pytest.param(
            pipeline(drawn=3, given=5, pending=["four", "five"]), id="drawn ahead"
        ),
    ],
)
def test_in_mid_epoch_what_only_that_backend_draws_is_refused(position):
    with pytest.raises(DataNotResumableError, match="only be drawn by jax") as found:
        position.switched_from("jax")
    assert "KERAS_BACKEND=jax" in str(found.value)
    assert "checkpoint at batch 0" in str(found.value)


def test_at_the_end_of_an_epoch_nothing_is_drawn_as_before():
    for position in (arrays({"keras": 3}, 0), arrays(None, 2)):
        assert position.switched_from("jax").source == {"drawn_from": "NumPy"}
    assert replayed(0).switched_from("jax") == replayed(0)


def test_other_data_has_the_same_position():
    position = DataPosition(drawn=3, source={"kind": "generator"}, last="two")
    assert position.switched_from("torch") is position
