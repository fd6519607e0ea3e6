"""Saves and loads ``.weights.h5`` and ``.keras`` through Keras, and verifies that.

Keras silently skips what it cannot save, and what it does not look for when it loads.
So a file is compared with what Keras would save for the model, and loaded twice over
different values, which shows what it sets.
"""

import os
import tempfile
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path

import h5py
import keras
import numpy as np

from resilient.backends import get_backend
from resilient.convert.tensors import Tensors, differences, mismatch, unique_names
from resilient.errors import NotSupportedError
from resilient.state import variables
from resilient.state.variables import Leaf
from resilient.state.weights import ready

_IN_KERAS = "model.weights.h5"
_KNOWN = {"config.json", "metadata.json", _IN_KERAS}
_OPTIMIZER = "optimizer/"


def read(file: Path, model: keras.Model) -> Tensors:
    """The values that a file sets, by path; the model is unchanged.

    Raises:
        CheckpointMismatchError: The file is of another model.
        NotSupportedError: It holds what loading would leave out, or is damaged.
    """
    live = ready(model)  # or Keras would save no optimizer
    with tempfile.TemporaryDirectory() as directory:
        like = Path(directory, "like.weights.h5")
        save(model, like)
        weights = _weights_of(file, Path(directory))
        theirs, ours = _layout(weights), _layout(like)
        if not any(name.startswith(_OPTIMIZER) for name in theirs):
            ours = {n: x for n, x in ours.items() if not n.startswith(_OPTIMIZER)}
        if different := differences(theirs, ours):
            raise mismatch(file, different.values())
        found = set_by(weights, model, live)
    return {n: found[x.name] for n, x in by_path(model).items() if x.name in found}


def by_path(model: keras.layers.Layer) -> dict[str, Leaf]:
    """The variables of a model or a layer, by path."""
    leaves = variables.leaves(model)
    names = unique_names(leaf.path for leaf in leaves)
    return dict(zip(names, leaves, strict=True))


def set_by(file: Path, model: keras.Model, live: Sequence[Leaf]) -> Tensors:
    """The values that loading a file sets, by the names of variables, all kept.

    The file is loaded twice, over different values: a variable that differs afterwards
    is one that it did not set.
    """
    backend, found = get_backend(), []
    with variables.kept(backend, live):
        for fill in (0, 1):
            now = backend.snapshot(variables.tensors(live)).arrays
            filled = {name: np.full_like(value, fill) for name, value in now.items()}
            variables.assign(backend, variables.listed(live), live, filled)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what it leaves out is found here
                model.load_weights(os.fspath(file))
            now = backend.snapshot(variables.tensors(live)).arrays
            found.append({name: np.array(value) for name, value in now.items()})
    first, second = found
    return {n: v for n, v in first.items() if v.tobytes() == second[n].tobytes()}


def save(model: keras.Model, path: Path) -> None:
    """Save a model in the format that the name of the file selects."""
    write = model.save if path.suffix == ".keras" else model.save_weights
    with warnings.catch_warnings():
        # Keras reads variables in a way that numpy 2.4 deprecates.
        warnings.simplefilter("ignore", DeprecationWarning)
        write(os.fspath(path))


def _layout(file: Path) -> dict[str, str]:
    """Shape and dtype of each dataset; none that a link leads to."""
    found = {}

    def add(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset):
            # Keras stores types that HDF5 lacks as another one, and names them.
            found[name] = f"{item.shape} {item.dtype} {item.attrs.get('dtype', '')}"

    with h5py.File(file, "r") as opened:
        opened.visititems(add)
    return found


def _weights_of(file: Path, directory: Path) -> Path:
    """The HDF5 file: the file itself, or what a ``.keras`` file holds, intact."""
    if file.suffix != ".keras":
        return file
    with zipfile.ZipFile(file) as archive:
        if more := set(archive.namelist()) - _KNOWN:
            raise NotSupportedError(
                "A .keras file can be imported only if it holds nothing but weights.",
                received=f"{file}: {', '.join(sorted(more))}",
                hint="Load it with keras.models.load_model, and import a file that its "
                "save_weights wrote.",
            )
        return Path(archive.extract(_IN_KERAS, directory))
