"""``.keras`` and ``.weights.h5``: written and read by Keras itself, then proved.

Keras passes over in silence what it does not know how to save or to load. So after a
file is written it is loaded over wrong values, and every weight and every variable of
the optimizer has to come back as it was.
"""

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from resilient.backends import get_backend
from resilient.convert.formats import Format
from resilient.errors import NotSupportedError, warn_not_exact
from resilient.saving.record import SavedState
from resilient.saving.run_json import RunJson
from resilient.state.variables import Leaf, assign, tensors
from resilient.state.weights import group, kept, needed, put, ready


def write(
    kind: Format,
    path: Path,
    model: keras.Model,
    *,
    saved: SavedState[RunJson],
    source: Path,
) -> None:
    """Write a checkpoint's weights and optimizer as Keras would; the model is kept.

    Args:
        kind: ``"keras"`` or ``"weights.h5"``.
        path: Which file to write; it has the ending that Keras wants.
        model: Built and compiled; it is as it was in the end.
        saved: What is in the checkpoint.
        source: The checkpoint, for messages.

    Raises:
        CheckpointMismatchError: The checkpoint is of another model.
        NotSupportedError: Keras would not save all of it.
    """
    live, variables = ready(model), saved.run.variables
    with kept(live):
        pairs = put(model, variables, saved.tensors, source)
        save = model.save if kind == "keras" else model.save_weights
        with warnings.catch_warnings():
            # Keras's own get_config of an optimizer does under numpy 2.4.
            warnings.simplefilter("ignore", DeprecationWarning)
            save(os.fspath(path))
        must = needed(model, live)
        expected = {
            leaf.name: saved.tensors[old["name"]]
            for old, leaf in pairs
            if leaf.name in must
        }
        _require_all(model, path, live, expected)
    lost = [v["path"] for v in variables if group(v["name"]) == "extra"]
    if lost:
        warn_not_exact(f"{path.suffix} files have no place for these variables", lost)


def _require_all(
    model: keras.Model,
    path: Path,
    live: list[Leaf],
    expected: Mapping[str, Any],
) -> None:
    """Load the file over wrong values, and compare."""
    backend = get_backend()
    leaves = [leaf for leaf in live if leaf.name in expected]
    layout = [leaf.to_json() for leaf in leaves]
    wanted = {name: np.asarray(value) for name, value in expected.items()}
    wrong = {name: _other_bytes(value) for name, value in wanted.items()}
    assign(backend, layout, leaves, wrong)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is missing is found below
        model.load_weights(os.fspath(path))
    loaded = backend.snapshot(tensors(leaves)).arrays
    lost = [
        leaf.path
        for leaf in leaves
        if loaded[leaf.name].tobytes() != wanted[leaf.name].tobytes()
    ]
    if lost:
        raise NotSupportedError(
            "Keras does not save and load all of this model in this format.",
            received="\n  " + "\n  ".join(lost),
            hint="Export to another format.",
        )


def _other_bytes(value: np.ndarray) -> np.ndarray:
    if value.dtype == bool:
        return np.asarray(np.logical_not(value))
    inverted = np.frombuffer(value.tobytes(), np.uint8) ^ 1
    return np.ndarray(value.shape, value.dtype, inverted.tobytes())
