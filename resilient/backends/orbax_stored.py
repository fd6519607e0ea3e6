"""Reads arrays of an Orbax checkpoint: whole, or slice by slice as devices need them.

TensorStore is told what to expect, uncompressed arrays of a shape and a dtype that we
have compared with the files; it opens those files, and no others.
"""

import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import tensorstore as ts

from resilient.backends.paths import plain
from resilient.backends.stored_files import StoredFiles, corrupt, decoding
from resilient.backends.zarr_chunks import METADATA, SavedArray

INLINE = 1024  # bytes; Orbax, too, lets OCDBT keep smaller values among the names
MOST = 1 << 16  # bytes of an array's metadata
_ALIGNMENT = 64  # bytes; less, and JAX copies
# Nobody writes to the files of a checkpoint.
_MAPPED = ts.Context({"file_io_mode": {"mode": "memmap"}})


def location(path: str) -> dict[str, Any]:
    """Where TensorStore finds the files of a directory."""
    return {"driver": "file", "path": f"{path}/"}


class Tree(Protocol):
    """Arrays that were written together."""

    def saved(self, names: list[str]) -> dict[str, SavedArray]:
        """Shape and dtype of arrays, which the files are large enough for.

        Raises:
            CorruptCheckpointError: They are not, or there is something else.
        """

    def read_whole(self, arrays: Mapping[str, SavedArray]) -> dict[str, np.ndarray]:
        """All of some of them, in memory that JAX need not copy.

        Raises:
            CorruptCheckpointError: Something else is there.
        """

    def read(
        self, name: str, array: SavedArray, index: tuple[slice, ...]
    ) -> np.ndarray:
        """Some of an array, in memory that JAX need not copy.

        Raises:
            CorruptCheckpointError: Something else is there.
        """


class ZarrTree:
    """A tree in which each chunk is a file.

    Args:
        files: Of the tree, and nothing else.
    """

    def __init__(self, files: StoredFiles) -> None:
        self._files = files

    def saved(self, names: list[str]) -> dict[str, SavedArray]:
        raw = {name: self._files.read(f"{name}/{METADATA}", MOST) for name in names}
        arrays = {name: SavedArray.of(each) for name, each in raw.items()}
        shards: dict[str, dict[str, int]] = {name: {} for name in arrays}
        for path, size in self._files.sizes.items():
            name, _, shard = path.rpartition("/")
            if name in shards and shard != METADATA:
                shards[name][shard] = size
        for name, array in arrays.items():
            if not array.is_in(shards[name]):
                raise corrupt(f"{name} does not have exactly one file for each shard")
        return arrays

    def read_whole(self, arrays: Mapping[str, SavedArray]) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = {}
        with plain(self._files.directory) as place:
            opening = {name: _open(place, name, arrays[name]) for name in arrays}
            reading = []
            for name, array in arrays.items():
                found[name] = aligned(tuple(array.shape), array.numpy_dtype)
                stored = opening[name].result()
                reading.append(ts.array(found[name]).write(stored))
            for each in reading:
                each.result()
        return found

    def read(
        self, name: str, array: SavedArray, index: tuple[slice, ...]
    ) -> np.ndarray:
        with decoding(name), plain(self._files.directory) as place:
            stored = _open(place, name, array).result()
            part = stored[index][ts.d[:].translate_to[0]]
            read = aligned(part.shape, array.numpy_dtype)
            ts.array(read).write(part).result()
        return read


def _open(place: str, name: str, array: SavedArray) -> "ts.Future[ts.TensorStore]":
    """Begin to open an array; TensorStore is told what it is."""
    spec = {
        "driver": "zarr",
        "kvstore": location(f"{place}/{name}"),
        "metadata": array.metadata(),
        "fill_missing_data_reads": False,  # a shard that is lost is not all zeros
    }
    return ts.open(spec, open=True, assume_metadata=True, context=_MAPPED)


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
