"""Reads a tree that is one database: each file once, its checksum on the way.

TensorStore, which would go through nodes and open each array, only decodes the nodes.
"""

import itertools
from collections.abc import Mapping

import numpy as np

from resilient.backends import ocdbt_places
from resilient.backends.arrays import contiguous_bytes
from resilient.backends.ocdbt_places import Place
from resilient.backends.orbax_stored import INLINE, MOST, aligned
from resilient.backends.stored_files import StoredFiles, corrupt, decoding
from resilient.backends.zarr_chunks import METADATA, SavedArray, chunk_name


class Database:
    """A tree of arrays of one chunk each.

    Args:
        files: Of the tree, and nothing else.
        arrays: How many are in it.
    """

    def __init__(self, files: StoredFiles, arrays: int) -> None:
        self._files = files
        self._values = ocdbt_places.of_values(files, arrays) if arrays else {}

    def saved(self, names: list[str]) -> dict[str, SavedArray]:
        raw = self._metadata(names)
        arrays = {name: SavedArray.of(raw[name]) for name in names}
        for name, array in arrays.items():
            if array.is_cut:
                raise corrupt(f"{name} is in shards, and in a database")
            if array.nbytes and self._size(name, array) != array.nbytes:
                raise corrupt(f"{name} has a different size than its shape says")
        # Several may be the same bytes, and small ones are compressed.
        large = sum(a.nbytes for a in arrays.values() if a.nbytes > INLINE)
        if large > sum(self._files.sizes.values()):
            raise corrupt("the arrays are larger than the files")
        return arrays

    def read_whole(self, arrays: Mapping[str, SavedArray]) -> dict[str, np.ndarray]:
        """Compares every byte of the files, too, even if it reads no array."""
        found: dict[str, np.ndarray] = {}
        parts: dict[str, list[tuple[slice, memoryview]]] = {}
        for name, array in arrays.items():
            found[name] = new = aligned(tuple(array.shape), array.numpy_dtype)
            if not array.nbytes:
                continue
            value, memory = self._value(name, array), contiguous_bytes(new)
            if isinstance(value, Place):
                parts.setdefault(value.file, []).append((value.at, memory))
            else:
                memory[:] = value
        for file in self._files.sizes:
            self._files.read_into(file, parts.get(file, []))
        return found

    def read(
        self, name: str, array: SavedArray, index: tuple[slice, ...]
    ) -> np.ndarray:
        value = self._value(name, array)
        with decoding(name):
            raw = (
                self._files.mapped(value.file)[value.at]
                if isinstance(value, Place)
                else value
            )
            whole = np.frombuffer(raw, np.uint8).view(array.numpy_dtype)
            part = whole.reshape(array.shape)[index]
            read = aligned(part.shape, part.dtype)
            np.copyto(read, part)
        return read

    def _metadata(self, names: list[str]) -> dict[str, bytes]:
        """What each array is, as text."""
        values = {name: self._values[f"{name}/{METADATA}"] for name in names}
        found, places = {}, []
        for name, value in values.items():
            if not isinstance(value, Place):
                found[name] = value
            elif value.at.stop - value.at.start > MOST:
                raise corrupt(f"{name} has far more metadata than an array needs")
            else:
                places.append((value.file, value.at.start, value.at.stop, name))
        # Several may be the same bytes.
        size = sum(stop - start for _, start, stop, _ in places)
        if size > sum(self._files.sizes.values()):
            raise corrupt("the arrays' metadata is larger than the files")
        for file, group in itertools.groupby(sorted(places), lambda each: each[0]):
            of_file = list(group)
            slices = [slice(start, stop) for _, start, stop, _ in of_file]
            pieces = self._files.pieces(file, slices)
            found |= {each[3]: raw for each, raw in zip(of_file, pieces, strict=True)}
        return found

    def _value(self, name: str, array: SavedArray) -> bytes | Place:
        return self._values[f"{name}/{chunk_name((0,) * len(array.shape))}"]

    def _size(self, name: str, array: SavedArray) -> int:
        value = self._value(name, array)
        if not isinstance(value, Place):
            return len(value)
        if value.at.stop > self._files.sizes.get(value.file, 0):
            raise corrupt(f"{name} is in no file")
        return int(value.at.stop - value.at.start)
