"""An Orbax checkpoint: Keras's ``get_state_tree()``, lists of variables, or paths.

{"trainable_variables": ..., "non_trainable_variables": ..., ...}
    in each a tree by paths (``get_state_tree()``, ``OrbaxCheckpoint``), or a list
{"model/dense/kernel": ...}
    by paths; or the same as a tree
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from resilient.convert.tensor_files import Tensors, library

# Where the managers of Orbax and Keras put the tree.
_INSIDE = ("", "pytree", "default", "state")
_METRICS = "metrics_variables/"  # these start over


def tree(path: Path) -> Path | None:
    """Where the tree is in a directory: there, or in the newest step."""
    if not path.is_dir():
        return None
    steps = [p for p in path.iterdir() if p.is_dir() and p.name.isdecimal()]
    newest = max(steps, key=lambda step: int(step.name), default=path)
    found = (newest / inside for inside in _INSIDE)
    return next((each for each in found if (each / "_METADATA").is_file()), None)


def read(path: Path) -> Tensors:
    """The tensors of the newest step, by what leads to them."""
    ocp = library("orbax.checkpoint", '"keras-resilient[jax]"')
    import jax

    where = tree(path)
    assert where is not None
    checkpointer = ocp.PyTreeCheckpointer()
    as_arrays = jax.tree.map(
        lambda _: ocp.RestoreArgs(restore_type=np.ndarray),
        checkpointer.metadata(where.absolute()).item_metadata.tree,
    )
    content = checkpointer.restore(where.absolute(), restore_args=as_arrays)
    return {n: each for n, each in _flat(content) if not n.startswith(_METRICS)}


def _flat(content: Any, prefix: str = "") -> Iterator[tuple[str, np.ndarray]]:
    if isinstance(content, (list, tuple)):
        content = {str(index): each for index, each in enumerate(content)}
    if isinstance(content, dict):
        for key, each in content.items():
            yield from _flat(each, f"{prefix}/{key}" if prefix else str(key))
    elif content is not None:
        yield prefix, np.asarray(content)
