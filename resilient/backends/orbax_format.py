"""Orbax's format, written and read through TensorStore, which Orbax uses.

A checkpoint is a flat PyTree in ``state/``, which
``orbax.checkpoint.PyTreeCheckpointer().restore(directory / "state")`` reads. It is
written in one transaction, uncompressed and unflushed, in a third of Orbax's time at
100 MB, and less below.

    state/              what has one value in all processes, and what process 0 has
    process-1-of-2/     what only process 1 has: a tree like ``state/``

A tree without shards is one OCDBT database. One with shards is plain Zarr, a file for
each shard: each process writes the shards that it owns, process 0 also the rest, and
only directories have to be merged.
"""

import json
import math
import os
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import tensorstore as ts

from resilient.backends import zarr_chunks
from resilient.backends.base import Part
from resilient.backends.orbax_stored import MAPPED, StoredArray, aligned
from resilient.backends.paths import plain
from resilient.backends.shards import Shards, one_piece
from resilient.errors import NotSupportedError

STATE = "state"
_METADATA = "_METADATA"
_SMALL = 1 << 18  # bytes; smaller arrays are read whole
_LONGEST = 255  # bytes, of a directory's name


def check_file_names(names: Iterable[str]) -> None:
    """Refuse names that no directory can have: in Zarr every tensor has one.

    Raises:
        NotSupportedError: A name is too long.
    """
    for name in names:
        if len(name) > _LONGEST:
            raise NotSupportedError(
                "A tensor's name is too long for a directory, which every tensor "
                "gets where one is spread over several devices.",
                received=f"{len(name)} characters: {name}",
                hint=f"Give layers shorter names: {_LONGEST} characters fit in all.",
            )


def write(tensors: Mapping[str, Any], directory: str, part: Part) -> None:
    """Write what this process owns into an existing, empty directory.

    Args:
        tensors: ``Shards``, and what NumPy can view as arrays.
        directory: Of this process; the files of all are merged later.
        part: Of the checkpoint.
    """
    shared = {name: each for name, each in tensors.items() if isinstance(each, Shards)}
    whole = {
        name: one_piece(np.asarray(each))
        for name, each in tensors.items()
        if name not in shared
    }
    with plain(directory) as path:
        state = os.path.join(path, STATE)
        if not part.index:
            _write_tree({**shared, **whole}, state, ocdbt=not shared)
            return
        if shared:
            os.mkdir(state)
            zarr_chunks.write(shared, _place(state, ocdbt=False), shapes=False)
        if whole:
            _write_tree(whole, os.path.join(path, part.name), ocdbt=True)


def _write_tree(arrays: Mapping[str, Shards], path: str, *, ocdbt: bool) -> None:
    os.mkdir(path)
    zarr_chunks.write(arrays, _place(path, ocdbt=ocdbt), shapes=True)
    with open(os.path.join(path, _METADATA), "w", encoding="utf-8") as file:
        file.write(json.dumps(_tree_metadata(list(arrays), ocdbt=ocdbt)))


def read(
    directory: str, part: Part, *, piecewise: bool
) -> dict[str, np.ndarray | StoredArray]:
    """Every array of a part, read-only, in memory that JAX need not copy.

    What was written in shards stays on the disk until slices are asked for.

    Args:
        directory: What all processes wrote, merged.
        part: Whose, beside those that all have.
        piecewise: Leave all that is large on the disk.
    """
    arrays: dict[str, np.ndarray | StoredArray] = {}
    with plain(directory) as path:
        own = os.path.isdir(os.path.join(path, part.name))
        for tree in [STATE, *([part.name] if own else [])]:
            arrays |= _read_tree(directory, path, tree, piecewise=piecewise)
    return arrays


def _read_tree(
    directory: str, path: str, tree: str, *, piecewise: bool
) -> dict[str, np.ndarray | StoredArray]:
    with open(os.path.join(path, tree, _METADATA), encoding="utf-8") as file:
        metadata = json.load(file)
    specs = {
        name: partial(_spec, tree, name, metadata["use_ocdbt"])
        for name in _names(metadata)
    }
    opening = {
        name: ts.open(spec(path), open=True, context=MAPPED)
        for name, spec in specs.items()
    }
    arrays: dict[str, np.ndarray | StoredArray] = {}
    reading = []
    for name, opened in opening.items():
        stored = opened.result()
        dtype = stored.dtype.numpy_dtype
        large = piecewise and math.prod(stored.shape) * dtype.itemsize > _SMALL
        if large or _is_cut(stored):
            arrays[name] = StoredArray(directory, specs[name], stored.shape, dtype)
            continue
        arrays[name] = array = aligned(stored.shape, dtype)
        reading.append(ts.array(array).write(stored))
        array.flags.writeable = False
    for each in reading:
        each.result()
    return arrays


def _is_cut(stored: ts.TensorStore) -> bool:
    chunk: Any = stored.chunk_layout.read_chunk.shape or ()  # None of a scalar
    return any(size > most for size, most in zip(stored.shape, chunk, strict=True))


def _spec(tree: str, name: str, ocdbt: bool, path: str) -> dict[str, Any]:
    return {
        "driver": "zarr",
        "kvstore": _place(os.path.join(path, tree), name, ocdbt=ocdbt),
        "fill_missing_data_reads": False,  # a shard that is lost is not all zeros
    }


def _place(path: str, name: str = "", *, ocdbt: bool) -> dict[str, Any]:
    """Where TensorStore finds an array of a tree, or all of them."""
    files = {"driver": "file", "path": f"{path}/"}
    inside = f"{name}/" if name else ""
    if not ocdbt:
        return {**files, "path": f"{path}/{inside}"}
    return {
        "driver": "ocdbt",
        "base": files,
        "path": inside,
        # Metadata of arrays stays where OCDBT has a checksum for it.
        "config": {"max_inline_value_bytes": 1024},
    }


def _tree_metadata(names: list[str], *, ocdbt: bool) -> dict[str, Any]:
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


def _names(metadata: dict[str, Any]) -> list[str]:
    leaves = metadata["tree_metadata"].values()
    return [leaf["key_metadata"][0]["key"] for leaf in leaves]
