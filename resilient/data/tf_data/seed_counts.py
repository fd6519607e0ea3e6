"""How often the seed generator of a shuffle was drawn from: read, and set.

``shuffle`` takes the seed of each iteration from a generator that belongs to the
dataset and outlasts its iterators. An iterator's state holds the number of draws, but
only where its shuffle is in use: not under a ``batch`` that came to its end, nor in the
second half of a ``concatenate``. So each generator is given an iterator on no data,
whose small state has that number; of all that TensorFlow keeps in states it is the one
thing that is read and written here. Making such an iterator draws once: undone.
"""

from typing import Any

import numpy as np
from tensorflow.core.framework import dataset_pb2, tensor_pb2

from resilient.data.tf_data import iterator_state

_FIRST = b"@@epoch_num_random_samples@@"  # of the values of a shuffle's state


class UnknownFormat(Exception):
    """TensorFlow keeps states of iterators in another way than this module knows."""


class SeedCount:
    """The draws from one seed generator.

    Args:
        dataset: A shuffle of no data that draws from it.

    Raises:
        UnknownFormat: Nothing was changed, but that it was drawn from once or twice.
    """

    def __init__(self, dataset: Any) -> None:
        self._iterator = iter(dataset)
        first = self.get()
        iter(dataset)
        self.set(2 * first - self.get())  # as before the two

    def get(self) -> int:
        return int(_State(iterator_state.save(self._iterator)).values[0])

    def set(self, count: int) -> None:
        state = _State(iterator_state.save(self._iterator))
        state.values[0] = count
        iterator_state.restore(self._iterator, state.as_array())


class _State:
    """The state of an iterator on a shuffle, taken apart."""

    def __init__(self, state: np.ndarray) -> None:
        self._tensor = tensor_pb2.TensorProto()
        self._tensor.ParseFromString(state.tobytes())
        self._parts = _split(self._tensor)
        for part in self._parts:
            if _FIRST in part.metadata:
                self._values = part.tensors[0].variant_val[0]
                break
        else:
            raise UnknownFormat("no count in the state of a shuffle")
        self._element = dataset_pb2.CompressedElement()
        self._element.ParseFromString(self._values.metadata)
        self.values = np.frombuffer(_uncompressed(self._element.data), "<i8").copy()

    def as_array(self) -> np.ndarray:
        self._element.data = _compressed(self.values.tobytes())
        self._values.metadata = self._element.SerializeToString()
        parts = [part.SerializeToString() for part in self._parts]
        lengths = b"".join(_varint(len(part)) for part in parts)
        self._tensor.tensor_content = lengths + b"".join(parts)
        return np.frombuffer(self._tensor.SerializeToString(), np.uint8)


def _split(tensor: Any) -> list[Any]:
    """The variants of a tensor of variants: their lengths come first."""
    data, lengths, at = tensor.tensor_content, [], 0
    for _ in range(tensor.tensor_shape.dim[0].size):
        length, at = _read_varint(data, at)
        lengths.append(length)
    parts = []
    for length in lengths:
        parts.append(tensor_pb2.VariantTensorDataProto())
        parts[-1].ParseFromString(data[at : at + length])
        at += length
    if at != len(data):
        raise UnknownFormat("variants do not fill their tensor")
    return parts


def _varint(value: int) -> bytes:
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 0x80:
            return value, at


def _uncompressed(data: bytes) -> bytes:
    """Undo snappy's block format, as far as short texts use it."""
    size, at = _read_varint(data, 0)
    out = bytearray()
    while at < len(data):
        tag, at = data[at], at + 1
        if tag & 3 == 0:  # as it is
            length = (tag >> 2) + 1
            if length > 60:
                extra = length - 60
                length = int.from_bytes(data[at : at + extra], "little") + 1
                at += extra
            out += data[at : at + length]
            at += length
            continue
        if tag & 3 == 1:  # again, from near before
            length, offset = (tag >> 2 & 7) + 4, (tag >> 5 << 8) | data[at]
            at += 1
        else:
            width = 2 if tag & 3 == 2 else 4
            length = (tag >> 2) + 1
            offset = int.from_bytes(data[at : at + width], "little")
            at += width
        for _ in range(length):
            out.append(out[-offset])
    if len(out) != size:
        raise UnknownFormat("values that are not compressed with snappy")
    return bytes(out)


def _compressed(data: bytes) -> bytes:
    """Snappy's block format, with nothing made smaller: at most 256 bytes."""
    assert 60 < len(data) <= 256
    return _varint(len(data)) + bytes([60 << 2, len(data) - 1]) + data
