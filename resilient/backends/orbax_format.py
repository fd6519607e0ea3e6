"""Orbax's format, written and read through TensorStore, Orbax's own library below.

A checkpoint is a flat PyTree in ``state/``, which
``orbax.checkpoint.PyTreeCheckpointer().restore(directory / "state")`` reads. It is
written in one transaction, uncompressed and without a flush of its own, which takes
a third of Orbax's time at 100 MB and less of it below.
"""

import json
import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorstore as ts

from resilient.backends.arrays import EXTENSION_DTYPES
from resilient.backends.base import Part
from resilient.backends.paths import plain

_STATE = "state"
_METADATA = "_METADATA"
# Files are flushed when the checkpoint is sealed, all at once.
_CONTEXT = ts.Context({"file_io_sync": False})
_MAPPED = ts.Context({"file_io_mode": {"mode": "memmap"}})
_ALIGNMENT = 64  # bytes; less, and JAX copies
_SMALL = 1 << 18  # bytes; opening a TensorStore takes longer than copying so many


def read(directory: str) -> dict[str, np.ndarray]:
    """Every array that ``write`` wrote, read-only, in memory that JAX can take over."""
    with plain(directory) as path:
        return _read(os.path.join(path, _STATE))


def _read(path: str) -> dict[str, np.ndarray]:
    with open(os.path.join(path, _METADATA), encoding="utf-8") as file:
        names = _names(json.load(file))
    opening = {
        name: ts.open(
            {"driver": "zarr", "kvstore": _database(path, name)},
            open=True,
            context=_MAPPED,
        )
        for name in names
    }
    stored = {name: each.result() for name, each in opening.items()}
    arrays = {
        name: _aligned(each.shape, each.dtype.numpy_dtype)
        for name, each in stored.items()
    }
    reading = [ts.array(arrays[name]).write(stored[name]) for name in names]
    for each in reading:
        each.result()
    for array in arrays.values():
        array.flags.writeable = False
    return arrays


def write(tensors: Mapping[str, Any], directory: str, part: Part) -> None:
    """Write what NumPy can show as arrays into an existing, empty directory."""
    with plain(directory) as path:
        _write(tensors, os.path.join(path, _STATE))


def _write(tensors: Mapping[str, Any], path: str) -> None:
    os.mkdir(path)
    arrays = {name: np.asarray(tensor) for name, tensor in tensors.items()}
    database = ts.KvStore.open(_database(path, ""), context=_CONTEXT).result()
    with ts.Transaction() as transaction:
        _write_arrays(arrays, database.with_transaction(transaction))
    with open(os.path.join(path, _METADATA), "w", encoding="utf-8") as file:
        file.write(json.dumps(_tree_metadata(list(arrays))))


def _write_arrays(arrays: Mapping[str, np.ndarray], database: ts.KvStore) -> None:
    """Write as the zarr driver does; the small ones past it."""
    writing: list[ts.Future[Any]] = []
    opening: dict[str, ts.Future[ts.TensorStore]] = {}
    for name, array in arrays.items():
        if array.nbytes > _SMALL:
            opening[name] = ts.open(
                {
                    "driver": "zarr",
                    "metadata": _zarr_metadata(array),
                    # Zeros must not come back as negative zeros.
                    "store_data_equal_to_fill_value": True,
                },
                kvstore=database / f"{name}/",
                create=True,
                context=_CONTEXT,
            )
            continue
        metadata = json.dumps(_zarr_metadata(array)).encode()
        writing.append(database.write(f"{name}/.zarray", metadata))
        if array.size:
            chunk = ".".join("0" * array.ndim) or "0"  # as Zarr calls it
            writing.append(database.write(f"{name}/{chunk}", array.tobytes()))
    for name, store in opening.items():
        # Copied nowhere: the array stays as it is until the transaction is over.
        written = store.result().write(
            arrays[name], can_reference_source_data_indefinitely=True
        )
        writing.append(written.copy)
    for each in writing:
        each.result()


def _database(path: str, name: str) -> dict[str, Any]:
    """Where TensorStore finds the array ``name``; of no name, all arrays."""
    return {
        "driver": "ocdbt",
        "base": {"driver": "file", "path": f"{path}/"},
        "path": f"{name}/" if name else "",
        # Metadata of arrays stays where OCDBT has a checksum for it.
        "config": {"max_inline_value_bytes": 1024},
    }


def _aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Memory that JAX can take as it is, in NumPy's large pages."""
    nbytes = dtype.itemsize * math.prod(shape)
    room = np.empty(nbytes + _ALIGNMENT, np.uint8)
    start = -room.ctypes.data % _ALIGNMENT
    return room[start : start + nbytes].view(dtype).reshape(shape)


def _zarr_metadata(array: np.ndarray) -> dict[str, Any]:
    """One chunk, the array's own bytes."""
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
        "chunks": [max(1, size) for size in array.shape],
    }


def _tree_metadata(names: list[str]) -> dict[str, Any]:
    """What Orbax wants to know of a flat dictionary of NumPy arrays."""
    value = {"value_type": "np.ndarray", "skip_deserialize": False}
    tree = {
        str((name,)): {
            "key_metadata": [{"key": name, "key_type": 2}],
            "value_metadata": value,
        }
        for name in names
    }
    return {"tree_metadata": tree, "use_ocdbt": True, "use_zarr3": False}


def _names(metadata: dict[str, Any]) -> list[str]:
    leaves = metadata["tree_metadata"].values()
    return [leaf["key_metadata"][0]["key"] for leaf in leaves]
