"""An Orbax checkpoint: Keras's ``get_state_tree()``, lists of variables, or paths.

{"trainable_variables": ..., "non_trainable_variables": ..., ...}
    in each a tree by paths (``get_state_tree()``, ``OrbaxCheckpoint``), or a list
{"model/dense/kernel": ...}
    by paths, as our export writes it; or the same as a tree
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

from resilient.convert.formats import library
from resilient.convert.formats.matching import by_name, paths
from resilient.state.variables import Leaf
from resilient.state.weights import group, ready

# Where trees are in what Orbax's and Keras's managers write.
_INSIDE = ("", "pytree", "default", "state")
_METRICS = "metrics_variables/"  # begin anew


def tree(path: Path) -> Path | None:
    """Where the tree is in a directory: there, or in the newest step."""
    steps = [p for p in path.iterdir() if p.is_dir() and p.name.isdecimal()]
    newest = max(steps, key=lambda step: int(step.name), default=path)
    found = (newest / inside for inside in _INSIDE)
    return next((each for each in found if (each / "_METADATA").is_file()), None)


def values(path: Path, model: keras.Model) -> dict[str, np.ndarray]:
    """The values in the newest step, see ``sources.ImportSource.values``."""
    ocp = library("orbax")
    import jax

    where = tree(path)
    assert where is not None
    checkpointer = ocp.PyTreeCheckpointer()
    as_arrays = jax.tree.map(
        lambda _: ocp.RestoreArgs(restore_type=np.ndarray),
        checkpointer.metadata(where.absolute()).item_metadata.tree,
    )
    content = checkpointer.restore(where.absolute(), restore_args=as_arrays)
    tensors = {
        name: value for name, value in _flat(content) if not name.startswith(_METRICS)
    }
    return by_name(where, tensors, _keys(model, tensors), model)


def _flat(content: Any, prefix: str = "") -> Iterator[tuple[str, np.ndarray]]:
    if isinstance(content, (list, tuple)):
        content = {str(index): each for index, each in enumerate(content)}
    if isinstance(content, dict):
        for key, each in content.items():
            yield from _flat(each, f"{prefix}/{key}" if prefix else str(key))
    elif content is not None:
        yield prefix, np.asarray(content)


def _keys(model: keras.Model, names: Any) -> dict[str, Leaf]:
    """What such a tree calls the variables."""
    if not any(name.startswith("trainable_variables/") for name in names):
        return paths(model)
    live = ready(model)
    listed = {f"{leaf.slot[0]}_variables/{leaf.slot[1]}": leaf for leaf in live}
    in_tree = {f"{group(leaf.name)}_variables/{leaf.path}": leaf for leaf in live}
    return listed if listed.keys() & set(names) else in_tree
