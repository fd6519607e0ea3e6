"""The state of a tf.data iterator as bytes, in memory.

``tf.train.Checkpoint`` keeps the same state, but only in files. Refused by TensorFlow
are pipelines with state of their own outside of the iterator: Python functions,
stateful random operations, variables that change.
"""

from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import gen_dataset_ops

_IGNORE = tf.data.experimental.ExternalStatePolicy.IGNORE.value
_FAIL = tf.data.experimental.ExternalStatePolicy.FAIL.value


def save(iterator: Any, *, known: bool = True) -> np.ndarray:
    """The state of an iterator: an array of bytes.

    Args:
        iterator: At any batch.
        known: Whether the pipeline is known to have no state outside of it. TensorFlow
            takes a variable that is only read for one, too.

    Raises:
        tf.errors.OpError: A part of the pipeline cannot be saved.
    """
    state = gen_dataset_ops.serialize_iterator(
        iterator._iterator_resource, external_state_policy=_IGNORE if known else _FAIL
    )
    return np.frombuffer(tf.io.serialize_tensor(state).numpy(), np.uint8)


def restore(iterator: Any, state: np.ndarray) -> None:
    """Set an iterator of an equal pipeline to a saved state."""
    gen_dataset_ops.deserialize_iterator(
        iterator._iterator_resource, tf.io.parse_tensor(state.tobytes(), tf.variant)
    )
