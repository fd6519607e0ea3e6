"""Which losses several ranks average as one process computes them."""

import os
import warnings

import keras
import pytest

if os.environ["KERAS_BACKEND"] != "torch":
    pytest.skip("only with the torch backend", allow_module_level=True)

from resilient import NotExactWarning, keras_internals
from resilient.distributed.strategies.torch_dp.losses import warn_of_masks

if keras_internals.generation.trains_on_ranks:
    pytest.skip("there Keras trains on ranks by itself", allow_module_level=True)


def words(*layers):
    return keras.Sequential(
        [keras.Input((5,)), keras.layers.Embedding(9, 2, mask_zero=True), *layers]
    )


class Subclassed(keras.Model):
    """Layers whose masks cannot be followed."""

    def __init__(self, *, mask_zero):
        super().__init__()
        self.words = keras.layers.Embedding(9, 2, mask_zero=mask_zero, name="words")

    def call(self, x):
        return self.words(x)


def test_a_mask_that_reaches_the_loss_is_said():
    with pytest.warns(NotExactWarning, match="each process's unmasked rows") as said:
        warn_of_masks(words(keras.layers.Dense(2)))
    assert str(said[0].message).endswith("\n  output 0")
    with pytest.warns(NotExactWarning, match="\n  words$"):
        warn_of_masks(Subclassed(mask_zero=True))


def test_nothing_is_said_where_no_mask_reaches_the_loss():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_masks(words(keras.layers.LSTM(3)))  # takes the mask, and hands none on
        warn_of_masks(Subclassed(mask_zero=False))
