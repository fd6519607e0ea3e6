"""Checks the index of a TensorFlow checkpoint (a "bundle") before TensorFlow reads it.

TensorFlow ends the process at an impossible shape, opens whatever other files an index
names, and takes as much memory as it says. So it reads only what was found to be right
here: a table of LevelDB's, uncompressed, that has of each tensor its shape and dtype,
and where in the data files its bytes are.
"""

import itertools
import math
import struct
from collections.abc import Collection, Iterator
from functools import cache
from typing import Any

import tensorflow as tf

from resilient.backends.arrays import DTYPES, MOST_TENSORS, is_countable
from resilient.backends.stored_files import StoredFiles, corrupt

_MOST = 64 << 20  # bytes of an index, and of the names in it
_OTHERS = 2  # entries beside the tensors: the header, and the graph of objects
_FOOTER = 48  # bytes
_MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
_TRAILER = 5  # bytes after a block: whether it is compressed, and a checksum
_CHECKSUM = 4  # bytes, between the lengths of texts and the texts
_MOST_DIMENSIONS = 254  # TensorFlow counts them in a byte
_MOST_UNLISTED = 128  # entries that a search reads in turn; TensorFlow writes 16


def checked(
    files: StoredFiles, prefix: str, *, texts: Collection[str] = ()
) -> dict[str, tf.DType]:
    """The dtypes of a bundle's tensors, by name.

    Args:
        files: Those that there are.
        prefix: What the names of the bundle's begin with.
        texts: Names of tensors that are a text each; all others are numbers.

    Raises:
        ValueError: The index is damaged.
        CorruptCheckpointError: It does not match the data.
    """
    from tensorflow.core.protobuf import tensor_bundle_pb2

    table = _table(memoryview(files.read(f"{prefix}.index", _MOST)))
    entries = dict(itertools.islice(table, MOST_TENSORS + _OTHERS + 1))
    if len(entries) > MOST_TENSORS + _OTHERS:
        raise ValueError("it has too many tensors")
    header = tensor_bundle_pb2.BundleHeaderProto.FromString(entries.pop(b"", b""))

    @cache
    def contents(shard: int) -> memoryview:
        return files.mapped(f"{prefix}.data-{shard:05}-of-{header.num_shards:05}")

    found, total = {}, 0
    for key, entry in entries.items():
        name, tensor = key.decode(), tensor_bundle_pb2.BundleEntryProto()
        tensor.ParseFromString(entry)
        if tensor.slices or not 0 <= tensor.shard_id < header.num_shards:
            raise corrupt(f"{name} is in several pieces, or in none")
        if not _is_there(tensor, contents(tensor.shard_id), text=name in texts):
            raise corrupt(f"{name} has a different size than its part of the file")
        found[name] = tf.dtypes.as_dtype(tensor.dtype)
        total += tensor.size
    if total > sum(files.sizes.values()):
        raise corrupt(f"the tensors of {prefix} are larger than its files")
    return found


def _is_there(tensor: Any, contents: memoryview, *, text: bool) -> bool:
    """Whether a tensor's bytes are in a file, as many as its shape and dtype need."""
    shape = [dimension.size for dimension in tensor.shape.dim]
    dtype = tf.dtypes.as_dtype(tensor.dtype)
    place = slice(tensor.offset, tensor.offset + tensor.size)
    if (
        tensor.shape.unknown_rank
        or len(shape) > _MOST_DIMENSIONS
        or not is_countable(shape)
        or min([tensor.offset, tensor.size, *shape]) < 0
        or place.stop > len(contents)
    ):
        return False
    if not text:
        return dtype.name in DTYPES and math.prod(shape) * dtype.size == tensor.size
    # The length of the text, a checksum of that, the text.
    length, begin = _varint(contents[place], 0)
    return (
        dtype == tf.string and not shape and begin + _CHECKSUM + length == tensor.size
    )


def _table(raw: memoryview) -> Iterator[tuple[bytes, bytes]]:
    """The entries of a table: names in their order, each once.

    TensorFlow finds an entry by the index of the table and by the beginnings that a
    block lists. Both lead to what is read here.
    """
    footer = raw[-_FOOTER:]
    if len(footer) < _FOOTER or footer[-len(_MAGIC) :] != _MAGIC:
        raise ValueError("it is not a table")
    _, at = _place(footer, 0)  # of what TensorFlow does not use
    index, _ = _place(footer, at)
    last = None
    for _, value in _block(raw, index):
        place, _ = _place(value, 0)
        for key, entry in _block(raw, place):
            if last is not None and key <= last:
                raise ValueError("its names are not in order")
            last = key
            yield key, bytes(entry)


def _block(raw: memoryview, place: slice) -> Iterator[tuple[bytes, memoryview]]:
    block, trailer = raw[place], raw[place.stop : place.stop + _TRAILER]
    if len(trailer) < _TRAILER or trailer[0] or len(block) < 4:
        raise ValueError("a block is missing, or compressed")
    (count,) = struct.unpack("<I", block[-4:])
    end = len(block) - 4 - 4 * count
    if end < 0:
        raise ValueError("a block is damaged")
    beginnings, at, key, names, number = dict[int, int](), 0, b"", 0, 0
    while at < end:
        start = at
        shared, at = _varint(block, at)
        added, at = _varint(block, at)
        length, at = _varint(block, at)
        if shared > len(key) or at + added + length > end:
            raise ValueError("a block is damaged")
        if not shared:
            beginnings[start] = number  # where TensorFlow may begin to read
        number += 1
        key = key[:shared] + bytes(block[at : at + added])
        at += added + length
        names += len(key)
        if names > _MOST:  # each may repeat the one before
            raise ValueError("its names are too long")
        yield key, block[at - length : at]
    listed = struct.unpack(f"<{count}I", block[end:-4])
    if not beginnings.keys() >= set(listed):
        raise ValueError("a block is damaged")
    places = [*(beginnings[each] for each in listed), number]
    steps = [after - one for one, after in itertools.pairwise(places)]
    if places[0] or not all(0 < step <= _MOST_UNLISTED for step in steps):
        raise ValueError("a block does not say where its entries start")


def _place(raw: memoryview, at: int) -> tuple[slice, int]:
    start, at = _varint(raw, at)
    size, at = _varint(raw, at)
    return slice(start, start + size), at


def _varint(raw: memoryview, at: int) -> tuple[int, int]:
    """A number of LevelDB's, and where it ends."""
    value = 0
    for shift in range(0, 64, 7):
        if at >= len(raw):
            break
        byte, at = raw[at], at + 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number is cut off")
