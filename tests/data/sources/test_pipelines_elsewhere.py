"""A tf.data pipeline goes on where Python drew from it, ahead of what it trained."""

import os

import numpy as np
import pytest

from resilient.backends import get_backend
from resilient.data.source import SourceContext
from resilient.errors import DataNotResumableError
from resilient.serialization.position import DataPosition

pytestmark = [
    pytest.mark.sources,
    pytest.mark.skipif(os.environ["KERAS_BACKEND"] != "tensorflow", reason="its own"),
]


def dataset(values):
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(values).shuffle(9, seed=3).batch(2)


def drawn_ahead(values) -> tuple[DataPosition, list]:
    """The position after three of five batches that were given, and all batches."""
    from resilient.data.tf_data.in_python import TFDataInPython

    settings = SourceContext(get_backend(), ahead=True)
    adapter = TFDataInPython(dataset(values), settings=settings)
    batches = iter(adapter.tracked)
    given = [next(batches).numpy().tolist() for _ in range(5)]
    position = adapter.position(3, held=True)
    assert len(position.pending) == 2
    rest = [batch.numpy().tolist() for batch in batches]
    return position.drawn_by("jax"), given + rest


def continued(values, position):
    from resilient.data.tf_data.adapter import TFData

    settings = SourceContext(get_backend(), saved=position, verbose=False)
    adapter = TFData(dataset(values), settings=settings)
    adapter.resume(position)
    adapter.seek(position)
    rest = adapter.wrap(adapter.get_tf_dataset())
    return [batch.numpy().tolist() for batch in rest]


def test_it_goes_on_after_what_was_trained():
    values = np.arange(16)
    position, batches = drawn_ahead(values)
    assert continued(values, position) == batches[3:]


def test_other_content_is_refused():
    position, _ = drawn_ahead(np.arange(16))
    with pytest.raises(DataNotResumableError, match="different content"):
        continued(np.arange(16) + 1, position)
