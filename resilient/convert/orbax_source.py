"""Reads Orbax checkpoints: Keras's ``get_state_tree()``, lists of variables, or paths.

{"trainable_variables": ..., "non_trainable_variables": ..., ...}
    in each a tree by paths (``get_state_tree()``, ``OrbaxCheckpoint``), or a list
{"model/dense/kernel": ...}
    by paths; or the same as a tree
"""

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from resilient.backends import ocdbt_nodes
from resilient.backends.stored_files import StoredFiles
from resilient.convert.matching import by_name, of_layout
from resilient.convert.tensor_files import Tensors, library
from resilient.errors import CorruptCheckpointError, NotSupportedError
from resilient.state.variables import leaves

# Where the managers of Orbax and Keras put the tree.
_INSIDE = ("", "pytree", "default", "state")
_METRICS = "metrics_variables/"


def tree(path: Path) -> Path | None:
    """Where the tree is in a directory: there, or in the newest step."""
    if not path.is_dir():
        return None
    steps = [p for p in path.iterdir() if p.is_dir() and p.name.isdecimal()]
    newest = max(steps, key=lambda step: int(step.name), default=path)
    found = (newest / inside for inside in _INSIDE)
    return next((each for each in found if (each / "_METADATA").is_file()), None)


def values(path: Path, model: keras.Model) -> Tensors:
    """The values in the newest step, see ``recognise.ImportSource.values``."""
    ocp = library("orbax.checkpoint", '"keras-resilient[orbax]"')
    import jax

    where = tree(path)
    assert where is not None
    _require_files(where)
    _require_small_nodes(where, len(leaves(model)))
    checkpointer = ocp.PyTreeCheckpointer()
    found = checkpointer.metadata(where.absolute()).item_metadata
    if found is None:
        raise ValueError("Orbax cannot read its metadata")
    metadata = found.tree
    # First of all without reading: what it says of them may be more than fits.
    layout = {n: (tuple(m.shape), str(np.dtype(m.dtype))) for n, m in _flat(metadata)}
    by_name(path, of_layout(layout), model)
    _require_small_chunks(path, dict(_flat(metadata)))
    as_arrays = jax.tree.map(
        lambda _: ocp.RestoreArgs(restore_type=np.ndarray), metadata
    )
    content = checkpointer.restore(where.absolute(), restore_args=as_arrays)
    return by_name(path, {n: np.asarray(each) for n, each in _flat(content)}, model)


def _require_small_chunks(path: Path, arrays: Mapping[str, Any]) -> None:
    """Refuse chunks that are larger than their array: each is read whole."""
    for name, array in arrays.items():
        chunk = getattr(array.storage, "chunk_shape", None) or (1,) * len(array.shape)
        pairs = zip(chunk, array.shape, strict=True)
        if any(size > max(1, most) for size, most in pairs):
            raise NotSupportedError(
                "An array's chunks are larger than the whole array.",
                received=f"{path}: {name} has shape {array.shape}, chunks {chunk}",
                hint="Import a checkpoint that Orbax saved.",
            )


def _require_small_nodes(where: Path, arrays: int) -> None:
    try:
        ocdbt_nodes.require_bounded(StoredFiles(os.fspath(where), None), arrays)
    except CorruptCheckpointError as error:
        raise NotSupportedError(
            "A database claims far more content than its files have bytes.",
            received=f"{where}: {error.received}",
            hint="Import a checkpoint that Orbax saved.",
        ) from error


def _require_files(where: Path) -> None:
    """Refuse links and whatever else would be read from elsewhere, or block."""
    for folder, folders, names in os.walk(where):
        for name in (*folders, *names):
            path = os.path.join(folder, name)
            mode = os.lstat(path).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise NotSupportedError(
                    "An Orbax checkpoint must consist of regular files and "
                    "directories.",
                    received=f"{path}: {stat.filemode(mode)}",
                    hint="Copy it with its links followed: cp -rL.",
                )


def _flat(content: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each leaf by what leads to it, but not the metrics: these start over."""
    if isinstance(content, (list, tuple)):
        content = {str(index): each for index, each in enumerate(content)}
    if isinstance(content, dict):
        for key, each in content.items():
            yield from _flat(each, f"{prefix}/{key}" if prefix else str(key))
    elif content is not None and not prefix.startswith(_METRICS):
        yield prefix, content
