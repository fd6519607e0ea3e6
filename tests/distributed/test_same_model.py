"""Whether processes train one model."""

import keras
import numpy as np
import pytest

from resilient.distributed.checks import (
    require_same_settings,
    require_same_values,
    require_same_variables,
)
from resilient.errors import ResilientError
from resilient.serialization.batches import checksum
from resilient.state.variables import leaves


class Chief:
    """Process 0 of two; it hears what the other has."""

    index, count = 0, 2

    def __init__(self, theirs):
        self._theirs = theirs

    def gather(self, topic, value):
        return [value, self._theirs]

    def broadcast(self, topic, value):
        return value


def model(name, dtype="float32"):
    layer = keras.layers.Dense(1, name=name, dtype=dtype)
    return keras.Sequential([keras.Input((2,)), layer])


def test_other_settings_are_an_error():
    mine = {"epochs": 3, "class_weight": {0: 0.5}, "loss": "mse"}
    told = {f"{name}:": repr(value) for name, value in mine.items()}
    require_same_settings(mine, Chief(told))
    expected = r"process 1 has epochs: 2, process 0 epochs: 3"
    with pytest.raises(ResilientError, match=expected):
        require_same_settings(mine, Chief(told | {"epochs:": "2"}))


def kinds(one):
    return {leaf.name: f"{leaf.shape} {leaf.dtype}" for leaf in leaves(one)}


@pytest.mark.parametrize(
    ("name", "dtype", "expected"),
    [
        ("other", "float32", r"process 1 has .*other\.kernel \(2, 1\) float32"),
        ("same", "float16", r"process 1 has .*same\.kernel \(2, 1\) float16"),
    ],
)
def test_other_variables_or_names_are_an_error(name, dtype, expected):
    """What one process saves, another could not resume from."""
    mine = model("same")
    require_same_variables(leaves(mine), Chief(kinds(mine)))
    with pytest.raises(ResilientError, match=expected):
        require_same_variables(leaves(mine), Chief(kinds(model(name, dtype))))


def test_other_values_are_an_error():
    """Each would go on with those of process 0."""
    mine = {"w": np.ones(3), "b": np.zeros(3)}
    told = {name: checksum(array) for name, array in mine.items()}
    require_same_values(mine, Chief(told))
    with pytest.raises(ResilientError, match=r"process 1 has w .*, process 0 w "):
        require_same_values(mine, Chief(told | {"w": told["b"]}))
