"""Arrays as Zarr has them: each shard is a chunk of its own, the shard's own bytes."""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
import tensorstore as ts
from msgspec import Meta

from resilient.backends.arrays import DTYPES, EXTENSION_DTYPES
from resilient.backends.shards import Shards

METADATA = ".zarray"
# Files are flushed when the checkpoint is sealed, all at once.
CONTEXT = ts.Context({"file_io_sync": False})
_SMALL = 1 << 18  # bytes; copying them is faster than opening a TensorStore


def write(arrays: Mapping[str, Shards], place: dict[str, Any], *, shapes: bool) -> None:
    """Write the shards that this process owns, in one transaction.

    Args:
        arrays: By name.
        place: Of all arrays, for TensorStore.
        shapes: Also write shape and dtype of each array. One process does.
    """
    everything = ts.KvStore.open(place, context=CONTEXT).result()
    with ts.Transaction() as transaction:
        store = everything.with_transaction(transaction)
        writing: list[ts.Future[Any]] = []
        large: dict[str, ts.Future[ts.TensorStore]] = {}
        for name, array in arrays.items():
            if math.prod(array.shard_shape) * array.dtype.itemsize > _SMALL:
                large[name] = _open(array, store / f"{name}/", create=shapes)
                continue
            if shapes:
                encoded = json.dumps(_metadata_of(array)).encode()
                writing.append(store.write(f"{name}/{METADATA}", encoded))
            for index, shard in array.owned.items():
                chunk = f"{name}/{chunk_name(index)}"
                writing.append(store.write(chunk, np.asarray(shard).tobytes()))
        for name, opened in large.items():
            writing += _write_large(arrays[name], opened.result())
        for each in writing:
            each.result()


def _open(
    array: Shards, store: ts.KvStore, *, create: bool
) -> ts.Future[ts.TensorStore]:
    # The others must not look for metadata that may not have been written yet.
    how = {"create": True} if create else {"open": True, "assume_metadata": True}
    spec = {
        "driver": "zarr",
        "metadata": _metadata_of(array),
        # Otherwise zeros may come back with another sign.
        "store_data_equal_to_fill_value": True,
    }
    return ts.open(spec | how, kvstore=store, context=CONTEXT)


def _write_large(array: Shards, store: ts.TensorStore) -> list[ts.Future[Any]]:
    """Copies nothing: the shards do not change until the transaction is over."""
    writing = []
    for index, shard in array.owned.items():
        sizes = zip(index, array.shard_shape, strict=True)
        where = tuple(slice(i * size, (i + 1) * size) for i, size in sizes)
        written = store[where].write(
            np.asarray(shard), can_reference_source_data_indefinitely=True
        )
        writing.append(written.copy)
    return writing


def _metadata_of(array: Shards) -> dict[str, Any]:
    chunks = [max(1, size) for size in array.shard_shape]
    return SavedArray(list(array.shape), chunks, _dtype_name(array.dtype)).metadata()


def _dtype_name(dtype: np.dtype[Any]) -> str:
    return dtype.name if dtype.name in EXTENSION_DTYPES else dtype.str


_DTYPES = {_dtype_name(np.dtype(name)): np.dtype(name) for name in DTYPES}


class SavedArray(msgspec.Struct):
    """What Zarr has to know of an array, and what we let its files say."""

    shape: list[Annotated[int, Meta(ge=0)]]
    chunks: list[Annotated[int, Meta(ge=1)]]
    dtype: str

    @classmethod
    def of(cls, raw: bytes) -> "SavedArray":
        """Read what ``metadata`` was written as.

        Raises:
            ValueError: Something else was written.
        """
        found = msgspec.json.decode(raw, type=cls)
        if msgspec.json.decode(raw) != found.metadata() or found.dtype not in _DTYPES:
            raise ValueError("an array is compressed, or has a different type")
        if len(found.shape) != len(found.chunks):
            raise ValueError("the shards of an array have a different rank")
        return found

    def metadata(self) -> dict[str, Any]:
        """For TensorStore."""
        return {
            "zarr_format": 2,
            "order": "C",
            "compressor": None,
            "filters": None,
            "fill_value": None,
            "dimension_separator": ".",
            "dtype": self.dtype,
            "shape": self.shape,
            "chunks": self.chunks,
        }

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        return _DTYPES[self.dtype]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.numpy_dtype.itemsize

    @property
    def is_cut(self) -> bool:
        return any(max(1, n) != c for n, c in zip(self.shape, self.chunks, strict=True))

    def is_in(self, files: Mapping[str, int]) -> bool:
        """Whether files, of these sizes, are one for each shard."""
        grid = [-(-n // c) for n, c in zip(self.shape, self.chunks, strict=True)]
        if len(files) != math.prod(grid):
            return False
        if not files:  # nothing to go through, however long the other dimensions are
            return True
        size = math.prod(self.chunks) * self.numpy_dtype.itemsize
        return all(
            files.get(chunk_name(index)) == size
            for index in itertools.product(*map(range, grid))
        )


def chunk_name(index: Sequence[int]) -> str:
    """What a chunk's file or key is called, by the chunk's place in the grid."""
    return ".".join(map(str, index)) or "0"
