"""Writes arrays as Zarr, each shard a chunk of its own: the shard's own bytes."""

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorstore as ts

from resilient.backends.arrays import EXTENSION_DTYPES
from resilient.backends.shards import Shards

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
                metadata = json.dumps(_metadata(array)).encode()
                writing.append(store.write(f"{name}/.zarray", metadata))
            for index, shard in array.owned.items():
                chunk = ".".join(map(str, index)) or "0"  # as Zarr calls it
                writing.append(
                    store.write(f"{name}/{chunk}", np.asarray(shard).tobytes())
                )
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
        "metadata": _metadata(array),
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


def _metadata(array: Shards) -> dict[str, Any]:
    name = array.dtype.name
    return {
        "zarr_format": 2,
        "order": "C",
        "compressor": None,
        "filters": None,
        "fill_value": None,
        "dimension_separator": ".",
        "dtype": name if name in EXTENSION_DTYPES else array.dtype.str,
        "shape": list(array.shape),
        "chunks": [max(1, size) for size in array.shard_shape],
    }
