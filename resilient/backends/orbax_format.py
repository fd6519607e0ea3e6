"""Orbax's format, written and read through TensorStore, which Orbax uses.

A checkpoint is a flat PyTree in ``state/``, which
``orbax.checkpoint.PyTreeCheckpointer().restore(directory / "state")`` reads. It is
written in one transaction, uncompressed and unflushed, in a third of Orbax's time at
100 MB, and less below; what is not in shards is repeated, see ``repeated_write``.

    state/              what has one value in all processes, and what process 0 has
    process-1-of-2/     what only process 1 has: a tree like ``state/``

A tree without shards is one OCDBT database. One with shards is plain Zarr, a file for
each shard: each process writes the shards that it owns, process 0 also the rest, and
only directories have to be merged.
"""

import json
import os
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta

from resilient.backends import ocdbt_places, zarr_chunks
from resilient.backends.arrays import NAME_PATTERN
from resilient.backends.base import Part
from resilient.backends.orbax_database import Database
from resilient.backends.orbax_stored import StoredArray, Tree, ZarrTree, location
from resilient.backends.paths import plain
from resilient.backends.repeated_write import RepeatedWrite
from resilient.backends.shards import Shards, one_piece
from resilient.backends.stored_files import StoredFiles, decoding
from resilient.errors import NotSupportedError

STATE = "state"
# Read by all processes; what only one has is compared before.
COMPARED = f"{STATE}/{ocdbt_places.FILES}"
_METADATA = "_METADATA"
_SMALL = 1 << 18  # bytes; smaller arrays are read whole
_MOST = 64 << 20  # bytes of metadata
_LONGEST = 255  # bytes, of a directory's name
_repeated = RepeatedWrite(ocdbt_places.of_arrays)


def check_file_names(names: Iterable[str]) -> None:
    """Refuse names that no directory can have: in Zarr every tensor has one.

    Raises:
        NotSupportedError: A name is too long.
    """
    for name in names:
        if len(name) > _LONGEST:
            raise NotSupportedError(
                "A tensor's name is too long to be the name of a directory, and each "
                "tensor needs one when any is spread over several devices.",
                received=f"{len(name)} characters: {name}",
                hint=f"Give layers shorter names: the whole may have {_LONGEST} "
                "characters.",
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
        name: np.asarray(each) for name, each in tensors.items() if name not in shared
    }
    with plain(directory) as path:
        state = os.path.join(path, STATE)
        if not part.index:
            if shared:
                pieces = {name: one_piece(each) for name, each in whole.items()}
                os.mkdir(state)
                _write_tree({**shared, **pieces}, state, ocdbt=False)
            else:
                _write_database(whole, state)
            return
        if shared:
            os.mkdir(state)
            zarr_chunks.write(shared, location(state), shapes=False)
        if whole:
            _write_database(whole, os.path.join(path, part.name))


def _write_database(arrays: Mapping[str, np.ndarray], path: str) -> None:
    os.mkdir(path)
    layout = tuple((name, x.shape, x.dtype) for name, x in arrays.items())
    pieces = {name: one_piece(each) for name, each in arrays.items()}

    def write() -> None:
        _write_tree(pieces, path, ocdbt=True)
        ocdbt_places.announce_inline_values(path)

    if arrays:
        _repeated.write(layout, arrays, path, write)
    else:
        _write_tree({}, path, ocdbt=True)


def _write_tree(arrays: Mapping[str, Shards], path: str, *, ocdbt: bool) -> None:
    place = ocdbt_places.writable(path) if ocdbt else location(path)
    zarr_chunks.write(arrays, place, shapes=True)
    with open(os.path.join(path, _METADATA), "w", encoding="utf-8") as file:
        file.write(json.dumps(_tree_metadata(list(arrays), ocdbt=ocdbt)))


def read(
    files: StoredFiles, part: Part, *, piecewise: bool
) -> dict[str, np.ndarray | StoredArray]:
    """Every array of a part, read-only, in memory that JAX need not copy.

    What was written in shards stays on the disk until slices are asked for.

    Args:
        files: What all processes wrote, merged.
        part: Whose, beside those that all have.
        piecewise: Leave all that is large on the disk.

    Raises:
        CorruptCheckpointError: They wrote something else.
    """
    arrays: dict[str, np.ndarray | StoredArray] = {}
    own = f"{part.name}/{_METADATA}" in files.sizes
    for name in [STATE, *([part.name] if own else [])]:
        with decoding(name):
            raw = files.read(f"{name}/{_METADATA}", _MOST)
            metadata = msgspec.json.decode(raw, type=_TreeMetadata)
            inside, names = files.inside(name), metadata.names()
            tree: Tree = (
                Database(inside, len(names)) if metadata.use_ocdbt else ZarrTree(inside)
            )
            arrays |= _read_tree(tree, names, piecewise=piecewise)
    return arrays


def _read_tree(
    tree: Tree, names: list[str], *, piecewise: bool
) -> dict[str, np.ndarray | StoredArray]:
    arrays: dict[str, np.ndarray | StoredArray] = {}
    whole = {}
    for name, saved in tree.saved(names).items():
        if saved.is_cut or (piecewise and saved.nbytes > _SMALL):
            arrays[name] = StoredArray(tree, name, saved)
        else:
            whole[name] = saved
    for name, array in tree.read_whole(whole).items():
        array.flags.writeable = False
        arrays[name] = array
    return arrays


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


class _Key(msgspec.Struct):
    key: Annotated[str, Meta(pattern=NAME_PATTERN)]


class _Leaf(msgspec.Struct):
    key_metadata: Annotated[list[_Key], Meta(min_length=1, max_length=1)]


class _TreeMetadata(msgspec.Struct):
    """What is read of what ``_tree_metadata`` makes."""

    tree_metadata: dict[str, _Leaf]
    use_ocdbt: bool
    use_zarr3: Literal[False]

    def names(self) -> list[str]:
        leaves = self.tree_metadata.values()
        return list(dict.fromkeys(leaf.key_metadata[0].key for leaf in leaves))
