"""Reads arrays of an Orbax checkpoint: whole, or slice by slice as devices need them.

TensorStore is told what to expect, uncompressed arrays of a shape and a dtype that we
have compared with the files; it opens those files, and no others.
"""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import tensorstore as ts

from resilient.backends import ocdbt_nodes
from resilient.backends.paths import only_stored, plain
from resilient.backends.stored_files import StoredFiles, corrupt, decoding
from resilient.backends.zarr_chunks import METADATA, SavedArray

INLINE = 1024  # bytes; Orbax, too, lets OCDBT keep smaller values among the names
_MOST = 1 << 16  # bytes of an array's metadata
_ALIGNMENT = 64  # bytes; less, and JAX copies
# Nobody writes to the files of a checkpoint.
_MAPPED = ts.Context({"file_io_mode": {"mode": "memmap"}})


def location(path: str, name: str = "", *, ocdbt: bool) -> dict[str, Any]:
    """Where TensorStore finds an array of a tree, or all of them."""
    files = {"driver": "file", "path": f"{path}/"}
    inside = f"{name}/" if name else ""
    if not ocdbt:
        return {**files, "path": f"{path}/{inside}"}
    return {
        "driver": "ocdbt",
        "base": files,
        "path": inside,
        "config": {"max_inline_value_bytes": INLINE},
    }


class Tree:
    """A tree of arrays.

    Args:
        files: Of the tree, and nothing else.
        ocdbt: Whether it is one database; otherwise every chunk is a file.
    """

    def __init__(self, files: StoredFiles, *, ocdbt: bool) -> None:
        self._files, self._ocdbt = files, ocdbt

    def place(self) -> AbstractContextManager[str]:
        """A path that TensorStore can read the tree from."""
        # A database may refer to any file.
        if self._ocdbt:
            return only_stored(self._files)
        return plain(self._files.directory)

    def saved(self, names: list[str], place: str) -> dict[str, SavedArray]:
        """Shape and dtype of arrays, which the files are large enough for.

        Raises:
            CorruptCheckpointError: They are not, or there is something else.
        """
        if self._ocdbt:
            ocdbt_nodes.require_bounded(self._files, len(names))
        read = self._read_in_database if self._ocdbt else self._read_in_files
        arrays = {name: SavedArray.of(raw) for name, raw in read(names, place)}
        files = self._files.sizes
        shards: dict[str, dict[str, int]] = {name: {} for name in arrays}
        for path, size in files.items():
            name, _, shard = path.rpartition("/")
            if name in shards and shard != METADATA:
                shards[name][shard] = size
        for name, array in arrays.items():
            if self._ocdbt and array.is_cut:
                raise corrupt(f"{name} is in shards, and in a database")
            if not self._ocdbt and not array.is_in(shards[name]):
                raise corrupt(f"{name} does not have exactly one file for each shard")
        # Several may be the same bytes, and small ones are compressed.
        large = sum(a.nbytes for a in arrays.values() if a.nbytes > INLINE)
        if large > sum(files.values()):
            raise corrupt("the arrays are larger than the files")
        return arrays

    def _read_in_files(self, names: list[str], _: str) -> Iterator[tuple[str, bytes]]:
        for name in names:
            yield name, self._files.read(f"{name}/{METADATA}", _MOST)

    def _read_in_database(
        self, names: list[str], place: str
    ) -> Iterator[tuple[str, bytes]]:
        database = location(place, ocdbt=True)
        store = ts.KvStore.open(database, context=_MAPPED).result()
        reading = [store.read(f"{name}/{METADATA}") for name in names]
        for name, each in zip(names, reading, strict=True):
            yield name, each.result().value

    def open(
        self, name: str, array: SavedArray, place: str
    ) -> "ts.Future[ts.TensorStore]":
        """Begin to open an array; TensorStore is told what it is."""
        spec = {
            "driver": "zarr",
            "kvstore": location(place, name, ocdbt=self._ocdbt),
            "metadata": array.metadata(),
            "fill_missing_data_reads": False,  # a shard that is lost is not all zeros
        }
        return ts.open(spec, open=True, assume_metadata=True, context=_MAPPED)

    def read(
        self, name: str, array: SavedArray, index: tuple[slice, ...]
    ) -> np.ndarray:
        """Some of an array.

        Raises:
            CorruptCheckpointError: Something else is there.
        """
        with decoding(name), self.place() as place:
            stored = self.open(name, array, place).result()
            part = stored[index][ts.d[:].translate_to[0]]
            read = aligned(part.shape, array.numpy_dtype)
            ts.array(read).write(part).result()
        return read


class StoredArray:
    """An array that is still on the disk."""

    def __init__(self, tree: Tree, name: str, saved: SavedArray) -> None:
        self.shape, self.dtype = tuple(saved.shape), saved.numpy_dtype
        self._tree, self._name, self._saved = tree, name, saved

    def read(self, index: tuple[slice, ...]) -> np.ndarray:
        """The elements in ``index``, read-only, in memory that JAX need not copy.

        Args:
            index: A slice without a step for each dimension.
        """
        array = self._tree.read(self._name, self._saved, index)
        array.flags.writeable = False
        return array

    def __array__(
        self, dtype: np.dtype[Any] | None = None, copy: bool | None = None
    ) -> np.ndarray:
        """All of it, read again each time."""
        whole = self.read((slice(None),) * len(self.shape))
        return whole if dtype is None else whole.astype(dtype, copy=False)


def aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Memory that JAX need not copy, in NumPy's large pages."""
    nbytes = dtype.itemsize * math.prod(shape)
    room = np.empty(nbytes + _ALIGNMENT, np.uint8)
    start = -room.ctypes.data % _ALIGNMENT
    return room[start : start + nbytes].view(dtype).reshape(shape)
