"""Files of arrays in Orbax's layout, written and read through TensorStore.

``orbax.checkpoint.PyTreeCheckpointer().restore(directory / "state")`` reads a
checkpoint of any number of processes: a flat dict, uncompressed.

    state/              what has one value in all processes, and what process 0 has
    process-1-of-2/     what only process 1 has: a tree like ``state/``

A tree is one database (OCDBT). If an array in it is spread over devices, the tree is
plain Zarr, a file for each shard: each process writes the shards that it owns, process
0 also the rest, and only directories have to be merged.
"""

import errno
import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore as ts

from resilient.backends.arrays import EXTENSION_DTYPES
from resilient.backends.base import HeldTensors, Part, plain
from resilient.backends.stored import StoredTensor, decoding

_STATE = "state"
_METADATA = "_METADATA"
_SMALL = 1 << 18  # bytes; smaller arrays are read whole
_ALIGNMENT = 64  # bytes; less, and JAX copies
# Bytes of a file with data, about: several are written, flushed and uploaded at once.
_FILE = 16 << 20
_AROUND = 4096  # bytes of a database that are not an array's, for each one; at most
# Files are flushed when the checkpoint is sealed, all at once.
_WRITING = ts.Context({"file_io_sync": False})
_MAPPED = ts.Context({"file_io_mode": {"mode": "memmap"}})


@dataclass(frozen=True)
class Shards:
    """The shards of one array, spread over devices, that this process owns.

    Attributes:
        shape: Of the whole array.
        dtype: Of the whole array.
        shard_shape: Of every shard; of an array in one piece, ``shape``.
        owned: Where a shard begins -> what NumPy can view as an array.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    shard_shape: tuple[int, ...]
    owned: dict[tuple[int, ...], Any]

    @classmethod
    def whole(cls, array: np.ndarray) -> "Shards":
        """An array that this process owns whole."""
        owned = {(0,) * array.ndim: array} if array.size else {}
        return cls(array.shape, array.dtype, array.shape, owned)


class Held(HeldTensors):
    """Arrays, and the shards of this process, to be written without a copy."""

    def _view(self, held: Any) -> Any:
        return held if isinstance(held, Shards) else np.asarray(held)

    def _write(self, held: Mapping[str, Any], directory: str, part: Part) -> list[str]:
        spread = {name: each for name, each in held.items() if isinstance(each, Shards)}
        whole = {
            name: Shards.whole(np.asarray(each))
            for name, each in held.items()
            if name not in spread
        }
        if not part.index:
            return _write_tree(spread | whole, directory, _STATE, ocdbt=not spread)
        shards = []
        if spread:
            shards = _write_arrays(spread, directory, _STATE, ocdbt=False, first=False)
        return shards + _write_tree(whole, directory, part.name, ocdbt=True)


def _write_tree(
    arrays: Mapping[str, Shards], directory: str, name: str, *, ocdbt: bool
) -> list[str]:
    files = _write_arrays(arrays, directory, name, ocdbt=ocdbt, first=True)
    metadata = f"{name}/{_METADATA}"
    with open(os.path.join(directory, metadata), "w", encoding="utf-8") as file:
        file.write(json.dumps(_tree_metadata(arrays, ocdbt=ocdbt)))
    return [metadata, *files]


def _write_arrays(
    arrays: Mapping[str, Shards], directory: str, name: str, *, ocdbt: bool, first: bool
) -> list[str]:
    """Write the shards that this process owns, in one transaction, without a copy.

    Args:
        arrays: By name.
        directory: Of this process.
        name: Of a new directory in it.
        ocdbt: Whether to write a database.
        first: Also write shape and dtype of each array. One process does.

    Returns:
        The files, relative to ``directory``.
    """
    path = os.path.join(directory, name)
    os.mkdir(path)
    place = _place(path, ocdbt=ocdbt)
    # The others must not read metadata that may not have been written yet.
    how = {"create": True} if first else {"open": True, "assume_metadata": True}
    everything = ts.KvStore.open(place, context=_WRITING).result()
    # Not a context: where something failed, leaving that waits for ever.
    transaction = ts.Transaction()
    store = everything.with_transaction(transaction)
    opening = {
        name: ts.open(_spec(array) | how, kvstore=store / f"{name}/", context=_WRITING)
        for name, array in arrays.items()
    }
    writing = []
    for array, opened in opening.items():
        stored = opened.result()
        for at, shard in arrays[array].owned.items():
            piece = np.asarray(shard)
            index = tuple(slice(a, a + n) for a, n in zip(at, piece.shape, strict=True))
            written = stored[index].write(
                piece, can_reference_source_data_indefinitely=True
            )
            writing.append(written.copy)
    for each in writing:
        each.result()
    transaction.commit_sync()
    files = _files_written(path, place, arrays, first=first)
    return [str(file.relative_to(directory)) for file in files]


def _files_written(
    path: str, place: dict[str, Any], arrays: Mapping[str, Shards], *, first: bool
) -> list[Path]:
    """List the files of a directory; OSError where somebody deleted one meanwhile."""
    sizes = {
        name: sum(piece.nbytes for piece in each.owned.values())
        for name, each in arrays.items()
    }
    store = ts.KvStore.open(place, context=_MAPPED).result()
    keys = [str(key, "ascii") for key in store.list().result()]
    # A small array may have fewer bytes than what a database has around all.
    large = {name for name in sizes if sizes[name] >= _AROUND * len(arrays)}
    reads = [
        store.read(f"{name}/{what}")
        for name, _, what in (key.rpartition("/") for key in keys)
        if name not in large or what == ".zarray"
    ]
    many = sum(len(each.owned) + first for each in arrays.values())
    files = [each for each in Path(path).rglob("*") if each.is_file()]
    found = sum(file.stat().st_size for file in files)
    whole = len(keys) == many and found >= sum(sizes.values())
    if not (whole and all(each.result().value for each in reads)):
        raise FileNotFoundError(errno.ENOENT, "A file was deleted", path)
    return files


def _place(path: str, *, ocdbt: bool = False) -> dict[str, Any]:
    """The files of a directory, for TensorStore."""
    files = {"driver": "file", "path": f"{path}/"}
    database = {"driver": "ocdbt", "base": files, "target_data_file_size": _FILE}
    return database if ocdbt else files


def _spec(array: Shards) -> dict[str, Any]:
    """An array as Orbax writes it with Zarr, but uncompressed."""
    name = array.dtype.name
    return {
        "driver": "zarr",
        # Otherwise zeros may come back with another sign.
        "store_data_equal_to_fill_value": True,
        "metadata": {
            "zarr_format": 2,
            "order": "C",
            "compressor": None,
            "filters": None,
            "fill_value": None,
            "dimension_separator": ".",
            "dtype": name if name in EXTENSION_DTYPES else array.dtype.str,
            "shape": list(array.shape),
            "chunks": [max(1, size) for size in array.shard_shape],
        },
    }


def _tree_metadata(names: Iterable[str], *, ocdbt: bool) -> dict[str, Any]:
    """Orbax's metadata of a flat dictionary of NumPy arrays."""
    value = {"value_type": "np.ndarray", "skip_deserialize": False}
    tree = {
        str((name,)): {
            "key_metadata": [{"key": name, "key_type": 2}],
            "value_metadata": value,
        }
        for name in names
    }
    return {"tree_metadata": tree, "use_ocdbt": ocdbt, "use_zarr3": False}


def read(
    directory: str, part: Part, *, lazy: bool
) -> dict[str, np.ndarray | StoredTensor]:
    """Arrays in memory that JAX need not copy; those in shards stay on the disk."""
    found = _read_tree(os.path.join(directory, _STATE), lazy=lazy)
    if part.index:
        found |= _read_tree(os.path.join(directory, part.name), lazy=lazy)
    return found


def _read_tree(path: str, *, lazy: bool) -> dict[str, np.ndarray | StoredTensor]:
    with open(os.path.join(path, _METADATA), encoding="utf-8") as file:
        metadata = json.load(file)
    leaves = metadata["tree_metadata"].values()
    names = [leaf["key_metadata"][0]["key"] for leaf in leaves]
    ocdbt = metadata["use_ocdbt"]
    found: dict[str, np.ndarray | StoredTensor] = {}
    reading = []
    for name, stored in _open(path, names, ocdbt=ocdbt).items():
        large = stored.size * stored.dtype.numpy_dtype.itemsize > _SMALL
        if _is_cut(stored) or (lazy and large):
            found[name] = _later(path, name, stored, ocdbt=ocdbt)
        else:
            array = _aligned(stored.shape, stored.dtype.numpy_dtype)
            reading.append(ts.array(array).write(stored))
            array.flags.writeable = False
            found[name] = array
    for each in reading:
        each.result()
    return found


def _open(path: str, names: Iterable[str], *, ocdbt: bool) -> dict[str, ts.TensorStore]:
    root = ts.KvStore.open(_place(path, ocdbt=ocdbt), context=_MAPPED).result()
    # A shard that is lost is not all zeros.
    spec = {"driver": "zarr", "fill_missing_data_reads": False}
    opening = {
        name: ts.open(spec, kvstore=root / f"{name}/", open=True, context=_MAPPED)
        for name in names
    }
    return {name: opened.result() for name, opened in opening.items()}


def _is_cut(stored: ts.TensorStore) -> bool:
    """Whether an array is in several shards."""
    shard = stored.chunk_layout.read_chunk.shape
    return stored.size > 0 and shard is not None and tuple(shard) != stored.shape


def _later(
    path: str, name: str, stored: ts.TensorStore, *, ocdbt: bool
) -> StoredTensor:
    directory = os.path.realpath(path)  # its plain name goes when reading ends

    def load(index: tuple[slice, ...]) -> np.ndarray:
        with decoding(name), plain(directory) as now:
            part = _open(now, [name], ocdbt=ocdbt)[name][index]
            array = _aligned(part.shape, part.dtype.numpy_dtype)
            ts.array(array).write(part[ts.d[:].translate_to[0]]).result()
        return array

    return StoredTensor(tuple(stored.shape), stored.dtype.numpy_dtype, load)


def _aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Memory that JAX need not copy, in NumPy's large pages."""
    nbytes = dtype.itemsize * math.prod(shape)
    room = np.empty(nbytes + _ALIGNMENT, np.uint8)
    start = -room.ctypes.data % _ALIGNMENT
    return room[start : start + nbytes].view(dtype).reshape(shape)
