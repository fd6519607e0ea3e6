"""Reads a TensorFlow checkpoint (a "bundle") without it, or checks what it may read.

TensorFlow ends the process at an impossible shape, opens whatever other files an index
names, and takes as much memory as it says. So it reads only what was found to be right
here: a table of LevelDB's, uncompressed, that has of each tensor its shape and dtype,
and where in the data files its bytes are.
"""

import itertools
import math
import re
import struct
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np

from resilient.backends.arrays import MOST_TENSORS
from resilient.backends.bundle_entries import TEXT, Entry, entry, shards, varint
from resilient.backends.stored_files import StoredFiles, corrupt, decoding

PREFIX = "state"
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_KEY = re.compile(r"tensors/(.+)/\.ATTRIBUTES/VARIABLE_VALUE")

_MOST = 64 << 20  # bytes of an index, and of the names in it
_OTHERS = 2  # entries beside the tensors: the header, and the graph of objects
_FOOTER = 48  # bytes
_MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
_TRAILER = 5  # bytes after a block: whether it is compressed, and a checksum
_CHECKSUM = 4  # bytes, between the lengths of texts and the texts
_MOST_UNLISTED = 128  # entries that a search reads in turn; TensorFlow writes 16


class Bundle:
    """The tensors of a bundle, of which every one is where its index says.

    Args:
        files: Those that there are.
        prefix: What the names of the bundle's begin with.
        texts: Names of tensors that are a text each; all others are numbers.

    Attributes:
        entries: The tensors, by name.

    Raises:
        ValueError: The index is damaged.
        CorruptCheckpointError: It does not match the data.
    """

    def __init__(
        self, files: StoredFiles, prefix: str, *, texts: Collection[str] = ()
    ) -> None:
        self._files, self._prefix = files, prefix
        table = _table(memoryview(files.read(f"{prefix}.index", _MOST)))
        found = dict(itertools.islice(table, MOST_TENSORS + _OTHERS + 1))
        if len(found) > MOST_TENSORS + _OTHERS:
            raise ValueError("it has too many tensors")
        self._shards = shards(found.pop(b"", b""))
        self.entries = {name.decode(): entry(raw) for name, raw in found.items()}
        self._contents = cache(self._mapped)
        for name, each in self.entries.items():
            if each.shard >= self._shards or not self._is_there(each, name in texts):
                raise corrupt(f"{name} has a different size than its part of the file")
        total = sum(x.place.stop - x.place.start for x in self.entries.values())
        if total > sum(files.sizes.values()):
            raise corrupt(f"the tensors of {prefix} are larger than its files")

    def _mapped(self, shard: int) -> memoryview:
        return self._files.mapped(self._data(shard))

    def _data(self, shard: int) -> str:
        return f"{self._prefix}.data-{shard:05}-of-{self._shards:05}"

    def _is_there(self, tensor: Entry, text: bool) -> bool:
        """Whether its bytes are in a file, as many as its shape and dtype need."""
        place, contents = tensor.place, self._contents(tensor.shard)
        size: int = place.stop - place.start
        if place.stop > len(contents) or text != (tensor.dtype == TEXT):
            return False
        if not text:
            itemsize = np.dtype(tensor.dtype).itemsize
            return size == math.prod(tensor.shape) * itemsize
        # The length of the text, a checksum of that, the text.
        length, begin = varint(contents[place], 0)
        return not tensor.shape and size == begin + _CHECKSUM + length

    def read_into(self, rooms: Mapping[str, memoryview]) -> None:
        """Read tensors into memory, and compare every byte of the files.

        Args:
            rooms: For the bytes of each, by name.

        Raises:
            CorruptCheckpointError: The files do not match their checksums.
        """
        for shard in range(self._shards):
            parts = [
                (self.entries[name].place, room)
                for name, room in rooms.items()
                if room and self.entries[name].shard == shard
            ]
            self._files.read_into(self._data(shard), parts)

    def array(self, name: str) -> np.ndarray:
        """A tensor of numbers; its bytes are compared with no checksum."""
        tensor = self.entries[name]
        raw, of = self._contents(tensor.shard)[tensor.place], np.dtype(tensor.dtype)
        array = np.frombuffer(raw, of).reshape(tensor.shape)
        return array if array.flags.aligned else array.copy()


class StoredTensor:
    """A tensor that is copied, if it has to be, when it is read."""

    def __init__(self, bundle: Bundle, name: str) -> None:
        entry = bundle.entries[name]
        self.shape, self.dtype = entry.shape, np.dtype(entry.dtype)
        self._bundle, self._name = bundle, name

    def __array__(
        self, dtype: np.dtype[Any] | None = None, copy: bool | None = None
    ) -> np.ndarray:
        whole = self._bundle.array(self._name)
        return whole if dtype is None else whole.astype(dtype, copy=False)


def tensors(files: StoredFiles, *, piecewise: bool = False) -> dict[str, Any]:
    """The tensors of a checkpoint of one process, as they were named.

    Args:
        files: Of the checkpoint, of which every byte was compared with a checksum.
        piecewise: Leave them on the disk, for ``numpy.asarray`` to read.

    Raises:
        CorruptCheckpointError: They hold something else.
    """
    with decoding(PREFIX):
        bundle = Bundle(files, PREFIX, texts={OBJECT_GRAPH})
        return {
            name: StoredTensor(bundle, key) if piecewise else bundle.array(key)
            for key in bundle.entries
            if (name := name_of(key)) is not None
        }


def name_of(key: str) -> str | None:
    """What a tensor was named that is under this name in a bundle; None for others."""
    match = _KEY.fullmatch(key)
    # tf.train.Checkpoint writes '.' as '..' (and '/' as '.S', which no name holds).
    return match and match[1].replace("..", ".")


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
        for key, content in _block(raw, place):
            if last is not None and key <= last:
                raise ValueError("its names are not in order")
            last = key
            yield key, bytes(content)


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
        shared, at = varint(block, at)
        added, at = varint(block, at)
        length, at = varint(block, at)
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
    start, at = varint(raw, at)
    size, at = varint(raw, at)
    return slice(start, start + size), at
