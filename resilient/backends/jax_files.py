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
_FILE = 32 << 20
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
            state = os.path.join(directory, _STATE)
            os.mkdir(state)
            shards = _write_arrays(spread, _place(state), first=False)
        files = _write_tree(whole, directory, part.name, ocdbt=True)
        return [*(f"{_STATE}/{shard}" for shard in shards), *files]


def _write_tree(
    arrays: Mapping[str, Shards], directory: str, name: str, *, ocdbt: bool
) -> list[str]:
    path = os.path.join(directory, name)
    os.mkdir(path)
    files = _write_arrays(arrays, _place(path, ocdbt=ocdbt), first=True)
    if ocdbt:
        files = _files_of_database(path, arrays)
    with open(os.path.join(path, _METADATA), "w", encoding="utf-8") as file:
        file.write(json.dumps(_tree_metadata(arrays, ocdbt=ocdbt)))
    return [f"{name}/{each}" for each in (_METADATA, *files)]


def _files_of_database(path: str, arrays: Mapping[str, Shards]) -> list[str]:
    """What TensorStore wrote, under names of its own, if no tensor is missing."""
    if not arrays:
        return ["manifest.ocdbt"]
    names = [f"d/{name}" for name in os.listdir(os.path.join(path, "d"))]
    sizes = [os.path.getsize(os.path.join(path, name)) for name in names]
    pieces = [each for array in arrays.values() for each in array.owned.values()]
    if sum(sizes) < sum(piece.nbytes for piece in pieces):
        number = errno.ENOENT
        raise FileNotFoundError(number, os.strerror(number), os.path.join(path, "d"))
    return ["manifest.ocdbt", *names]


def _write_arrays(
    arrays: Mapping[str, Shards], place: dict[str, Any], *, first: bool
) -> list[str]:
    """Write the shards that this process owns, in one transaction, without a copy.

    Args:
        arrays: By name.
        place: Of all arrays, for TensorStore.
        first: Also write shape and dtype of each array. One process does.

    Returns:
        The keys that were written.
    """
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
    writing, keys = [], [f"{name}/.zarray" for name in arrays] if first else []
    for name, opened in opening.items():
        stored, sizes = opened.result(), arrays[name].shard_shape
        for at, shard in arrays[name].owned.items():
            numbers = [str(a // max(1, n)) for a, n in zip(at, sizes, strict=True)]
            keys.append(f"{name}/{'.'.join(numbers) or '0'}")
            piece = np.asarray(shard)
            index = tuple(slice(a, a + n) for a, n in zip(at, piece.shape, strict=True))
            written = stored[index].write(
                piece, can_reference_source_data_indefinitely=True
            )
            writing.append(written.copy)
    for each in writing:
        each.result()
    transaction.commit_sync()
    return keys


def _place(path: str, *, ocdbt: bool = False) -> dict[str, Any]:
    """The files of a directory, for TensorStore."""
    files = {"driver": "file", "path": f"{path}/"}
    if not ocdbt:
        return files
    return {"driver": "ocdbt", "base": files, "target_data_file_size": _FILE}


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
