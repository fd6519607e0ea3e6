"""Reads and sets how often a shuffle's seed generator was drawn from.

``shuffle`` takes the seed of each iteration from a generator that belongs to the
dataset and outlasts its iterators. An iterator's state holds the number of draws, but
only while its shuffle is in use: not under an exhausted ``batch``, nor in the second
half of a ``concatenate``. So for each generator we create an iterator over no data,
whose small state has that number. Nothing else in states is read or written here.
Creating such an iterator draws once, which is undone.
"""

from typing import Any

import tensorflow as tf
from tensorflow.core.framework import dataset_pb2, tensor_pb2, types_pb2
from tensorflow.python.ops import gen_experimental_dataset_ops

from resilient.data.tf_data import iterator_state

_FIRST = b"@@epoch_num_random_samples@@"  # the first value in a shuffle's state
# How the field `variant_val` of a TensorProto begins.
_VARIANT_VAL = bytes([tensor_pb2.TensorProto.VARIANT_VAL_FIELD_NUMBER << 3 | 2])


class UnknownFormat(Exception):
    """TensorFlow stores iterator states in an unknown way."""


class SeedCount:
    """The draws from one seed generator.

    Args:
        dataset: A shuffle over no data that draws from it.

    Raises:
        UnknownFormat: Nothing was changed, except for one or two draws.
    """

    def __init__(self, dataset: Any) -> None:
        self._iterator = iter(dataset)
        first = self.get()
        iter(dataset)
        self.set(2 * first - self.get())  # as before the two draws

    def get(self) -> int:
        return int(_values(self._parts()[1])[0])

    def set(self, count: int) -> None:
        with tf.device("/CPU:0"):
            place, shuffle, parts = self._parts()
            values = [tf.constant(count, tf.int64), *_values(shuffle)[1:]]
            compressed = gen_experimental_dataset_ops.compress_element(values)
            shuffle.tensors[0].variant_val[0].CopyFrom(_message(compressed))
            parts[place] = _variant(shuffle)
            iterator_state.write(self._iterator, tf.stack(parts))

    def _parts(self) -> tuple[int, Any, list[Any]]:
        """The place of the shuffle in the state, its message, and all parts."""
        with tf.device("/CPU:0"):
            parts = tf.unstack(iterator_state.read(self._iterator))
            messages = list(map(_message, parts))
        for place, message in enumerate(messages):
            if _FIRST in message.metadata:
                return place, message, parts
        raise UnknownFormat("no count in the state of a shuffle")


def _values(shuffle: Any) -> list[Any]:
    """The values in a shuffle's state, the count first."""
    try:
        (compressed,) = shuffle.tensors[0].variant_val
        element = dataset_pb2.CompressedElement.FromString(compressed.metadata)
        count = len(element.component_metadata)
        found: list[Any] = gen_experimental_dataset_ops.uncompress_element(
            _variant(compressed), [tf.int64] * count, [[]] * count
        )
    except Exception as error:  # whatever the mismatch
        raise UnknownFormat("values that are not compressed integers") from error
    return found


def _message(variant: Any) -> Any:
    """The protobuf message that TensorFlow writes for a variant."""
    tensor = tensor_pb2.TensorProto.FromString(tf.io.serialize_tensor(variant).numpy())
    # The message comes after its length, as in a field of another message.
    field = _VARIANT_VAL + tensor.tensor_content
    return tensor_pb2.TensorProto.FromString(field).variant_val[0]


def _variant(message: Any) -> Any:
    tensor = tensor_pb2.TensorProto(
        dtype=types_pb2.DT_VARIANT, tensor_shape={}, variant_val=[message]
    )
    return tf.io.parse_tensor(tensor.SerializeToString(), tf.variant)
