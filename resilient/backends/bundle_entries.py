"""What the index of a TensorFlow checkpoint says of one tensor, in Protocol Buffers.

Only what TensorFlow writes is read: each field once, in the order of their numbers.
So whatever else decodes the same bytes finds the same.

    BundleEntryProto    1: dtype  2: shape  3: shard  4: offset  5: size  6: checksum
    TensorShapeProto    2: {1: size} for each dimension
    BundleHeaderProto   1: shards  2: whether big-endian  3: version
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from resilient.backends.arrays import DTYPES, is_countable

TEXT = "string"
# As TensorFlow numbers those that a checkpoint may hold.
_NUMBERS = {
    1: "float32",
    2: "float64",
    3: "int32",
    4: "uint8",
    5: "int16",
    6: "int8",
    7: TEXT,
    8: "complex64",
    9: "int64",
    10: "bool",
    14: "bfloat16",
    17: "uint16",
    18: "complex128",
    19: "float16",
    22: "uint32",
    23: "uint64",
    24: "float8_e5m2",
    25: "float8_e4m3fn",
}
_MOST_DIMENSIONS = 64  # the most that NumPy has
_NUMBER, _BYTES, _FIXED = 0, 2, 5  # how a field is encoded
_ENTRY = {1: _NUMBER, 2: _BYTES, 3: _NUMBER, 4: _NUMBER, 5: _NUMBER, 6: _FIXED}
_HEADER = {1: _NUMBER, 2: _NUMBER, 3: _BYTES}


@dataclass(frozen=True)
class Entry:
    """A tensor: what it is, and where its bytes are.

    Attributes:
        dtype: Name of its dtype; ``TEXT`` of a text.
        shape: Of the tensor.
        shard: Number of the file with its bytes.
        place: Of its bytes in that file.
    """

    dtype: str
    shape: tuple[int, ...]
    shard: int
    place: slice


def entry(raw: bytes) -> Entry:
    """What is said of a tensor.

    Raises:
        ValueError: It is not what TensorFlow writes of a tensor in one piece.
    """
    found = _message(raw, _ENTRY)
    dtype = _NUMBERS.get(_number(found, 1), "")
    if dtype not in DTYPES | {TEXT}:
        raise ValueError("a tensor has a type that a checkpoint cannot hold")
    dimensions = _fields(_bytes(found, 2), {2: _BYTES}, again=True)
    sizes = (_number(_message(each, {1: _NUMBER}), 1) for _, each in dimensions)
    shape = tuple(sizes)
    if len(shape) > _MOST_DIMENSIONS or not is_countable(shape):
        raise ValueError("a tensor has a shape that no tensor can have")
    start = _number(found, 4)
    place = slice(start, start + _number(found, 5))
    return Entry(dtype, shape, _number(found, 3), place)


def shards(raw: bytes) -> int:
    """How many files there are, by the header.

    Raises:
        ValueError: It is none, or of another byte order.
    """
    found = _message(raw, _HEADER)
    if _number(found, 2):
        raise ValueError("a machine with another byte order wrote it")
    return _number(found, 1)


def varint(raw: memoryview, at: int) -> tuple[int, int]:
    """A number of variable length, and where it ends.

    Raises:
        ValueError: It does not end.
    """
    value = 0
    for shift in range(0, 64, 7):
        if at >= len(raw):
            break
        byte, at = raw[at], at + 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number is cut off")


Fields = Mapping[int, "int | memoryview"]


def _message(raw: "bytes | memoryview | int", known: Mapping[int, int]) -> Fields:
    assert not isinstance(raw, int)
    return dict(_fields(memoryview(raw), known))


def _number(found: Fields, field: int) -> int:
    value = found.get(field, 0)  # what is 0 is not written
    assert isinstance(value, int)
    return value


def _bytes(found: Fields, field: int) -> memoryview:
    value = found.get(field, memoryview(b""))
    assert isinstance(value, memoryview)
    return value


def _fields(
    raw: memoryview, known: Mapping[int, int], *, again: bool = False
) -> Iterator[tuple[int, "int | memoryview"]]:
    """Number and value of each field.

    Args:
        raw: A message.
        known: How each field that it may have is encoded.
        again: Whether a field may come several times.
    """
    last, at = 0, 0
    while at < len(raw):
        tag, at = varint(raw, at)
        field, kind = tag >> 3, tag & 7
        if known.get(field) != kind or field < last + (not again):
            raise ValueError("it says something else than TensorFlow writes")
        last = field
        if kind == _NUMBER:
            number, at = varint(raw, at)
            yield field, number
            continue
        size = struct.calcsize("<I")
        if kind == _BYTES:
            size, at = varint(raw, at)
        if at + size > len(raw):
            raise ValueError("it is cut off")
        yield field, raw[at : at + size]
        at += size
