"""Reads and sets the state of a tf.data iterator in memory, as a tensor and as bytes.

``tf.train.Checkpoint`` saves the same state, but only to files. TensorFlow refuses
pipelines with state outside the iterator: Python functions, stateful random operations,
variables that change.
"""

from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import gen_dataset_ops

from resilient.serialization.schema import MalformedError

_IGNORE = tf.data.experimental.ExternalStatePolicy.IGNORE.value
_FAIL = tf.data.experimental.ExternalStatePolicy.FAIL.value


def read(iterator: Any, *, known: bool = True) -> Any:
    """The state of an iterator: a vector of variants.

    Args:
        iterator: At any batch.
        known: Whether the pipeline is known to have no state outside the iterator.
            TensorFlow also counts a variable that is only read.

    Raises:
        tf.errors.OpError: A part of the pipeline cannot be saved.
    """
    return gen_dataset_ops.serialize_iterator(
        iterator._iterator_resource, external_state_policy=_IGNORE if known else _FAIL
    )


def write(iterator: Any, state: Any) -> None:
    """Set an iterator of an equal pipeline to what ``read`` returned."""
    gen_dataset_ops.deserialize_iterator(iterator._iterator_resource, state)


def save(iterator: Any, *, known: bool = True) -> np.ndarray:
    """The same state as an array of bytes."""
    state = tf.io.serialize_tensor(read(iterator, known=known))
    return np.frombuffer(state.numpy(), np.uint8)


def restore(iterator: Any, state: np.ndarray) -> None:
    """Set an iterator of an equal pipeline to what ``save`` returned.

    Raises:
        MalformedError: It is not a state.
        tf.errors.OpError: It belongs to a different pipeline.
    """
    write(iterator, parsed(state, tf.variant, "the state of an iterator"))


def parsed(raw: Any, dtype: Any, what: str) -> Any:
    """The tensor whose bytes are in a checkpoint.

    Raises:
        MalformedError: They are not a tensor of this dtype.
    """
    try:
        return tf.io.parse_tensor(raw.tobytes(), dtype)
    except tf.errors.OpError as error:
        raise MalformedError(f"{what}: {error}") from error
