"""What is read of a value, to see later whether it changed."""

import keras
import pytest

from resilient.objects.content import Scope, read
from resilient.objects.opaque_hash import opaque_hash
from resilient.objects.sizing import Size


def test_a_table_is_never_read_as_a_whole():
    pandas = pytest.importorskip("pandas")
    for table in (pandas.DataFrame({"a": [1, 2]}), pandas.Series([1, 2])):
        found = read(table, Scope())
        assert (found.kind, found.size) == ("table", Size.LARGE)


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="of torch")
def test_a_tensor_that_has_no_elements_to_read_is_left_alone():
    import torch

    found = read(torch.ones(2, device="meta"), Scope())
    assert found.size is Size.OTHER


class Holder:
    def __init__(self, held):
        self.held = held


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="of torch")
def test_a_tensor_counts_by_its_elements_in_what_is_not_read():
    import torch

    one, same, other = (
        opaque_hash(Holder(torch.tensor(values)), frozenset())
        for values in ([1.0, 2.0], [1.0, 2.0], [1.0, 3.0])
    )
    assert one is not None
    assert one == same
    assert one != other
