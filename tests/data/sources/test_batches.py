"""Batches come apart and together again, whatever library their arrays are of."""

import json

import jax
import keras
import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf
import torch

from resilient import NotSupportedError
from resilient.serialization.batches import checksum, copied, pack, unpack
from resilient.serialization.json_values import decode, encode
from resilient.serialization.schema import MalformedError

pytestmark = pytest.mark.sources

X = np.arange(6, dtype="float32").reshape(2, 3)
COMPOSITE = [
    tf.sparse.from_dense(X),
    tf.RaggedTensor.from_nested_row_splits([1.0, 2.0, 3.0], [[0, 2], [0, 1, 3]]),
    scipy.sparse.csr_matrix(X),
]
PLAIN = [
    X,
    X.astype("bool"),
    np.array([1, 2], "int64"),
    np.zeros((0, 3)),
    tf.constant(X),
    tf.constant(["one", "two"]),
    torch.from_numpy(X),
    torch.ones(3, dtype=torch.bfloat16),
    keras.ops.convert_to_tensor(X),
]


def stored(batch):
    """The batch after a way through a checkpoint."""
    arrays = {}
    data = json.loads(json.dumps(encode(pack(batch), arrays, "data")))
    return unpack(decode(data, {k: v.copy() for k, v in arrays.items()}))


@pytest.mark.parametrize(
    "leaf", PLAIN + COMPOSITE, ids=lambda leaf: type(leaf).__name__
)
def test_every_kind_of_array_survives(leaf):
    again = stored((leaf, {"y": leaf}))
    assert checksum(again) == checksum((leaf, {"y": leaf}))
    assert type(again) is tuple
    assert type(again[0]).__name__ == type(leaf).__name__
    if hasattr(leaf, "dtype"):
        assert again[0].dtype == leaf.dtype


@pytest.mark.parametrize(
    "leaf", [X, torch.from_numpy(X), jax.numpy.asarray(X)], ids=lambda x: str(type(x))
)
def test_a_copy_has_memory_of_its_own(leaf):
    copy = np.asarray(copied(leaf))
    np.testing.assert_array_equal(copy, np.asarray(leaf))
    assert not np.shares_memory(copy, np.asarray(leaf))


def test_structures_none_and_numbers_survive():
    batch = ({"a": [X, None], "b": (X,)}, 3, 2.5, True, None)
    again = stored(batch)
    assert checksum(again) == checksum(batch)
    assert again[1:] == batch[1:]
    assert type(again[0]["a"]) is list
    assert again[0]["a"][1] is None


OTHERS = [
    (X + 1,),
    (X.astype("float64"),),
    (X.reshape(3, 2),),
    (X.T,),
    (X, X),
    (torch.from_numpy(X),),
]


@pytest.mark.parametrize("other", OTHERS)
def test_another_batch_has_another_checksum(other):
    assert checksum(other) != checksum((X,))


def test_a_checksum_does_not_depend_on_memory_layout():
    assert checksum((np.asfortranarray(X),)) == checksum((X,))
    assert checksum((np.array(["a", "b"], object),)) == checksum(
        (np.array(["a", "b"], object),)
    )


def test_what_is_no_array_is_refused_by_name():
    with pytest.raises(NotSupportedError, match="not an array") as found:
        pack((X, object()))
    assert "Received: builtins.object" in str(found.value)


def leaf(kind, *parts):
    return {"kind": kind, "parts": [np.asarray(part) for part in parts]}


HOSTILE = [
    5,
    [X],
    {"kind": "numpy"},
    {"kind": "numpy", "parts": []},
    leaf("numpy", X, X),
    leaf("scalar", X),
    leaf("os.system", X),
    leaf("torch load", np.zeros(2, "int16")),
    leaf("torch", ["a"]),
    leaf("scipy", [1.0], [7], [0], [2, 2]),
]


@pytest.mark.parametrize("packed", HOSTILE, ids=range(len(HOSTILE)))
def test_what_is_no_packed_batch_is_an_error_of_ours(packed):
    with pytest.raises(MalformedError):
        unpack([packed, None])


def test_a_batch_may_have_the_names_that_its_leaves_are_packed_with():
    batch = {"kind": X, "parts": [X]}
    assert checksum(stored(batch)) == checksum(batch)
