"""``.weights.h5`` and ``.keras``, loaded by Keras itself.

Keras passes over in silence what does not fit. So the file is compared first with what
Keras would save of this model, and then it is proved that each variable was set.
"""

import os
import tempfile
import warnings
import zipfile
from pathlib import Path

import keras
import numpy as np

from resilient.convert.formats.matching import Layout, by_loading, require_same
from resilient.errors import NotSupportedError
from resilient.state.weights import group, needed, ready

_IN_KERAS = "model.weights.h5"
_KNOWN = {"config.json", "metadata.json", _IN_KERAS}
_OPTIMIZER = "optimizer/"


def weights_file(path: Path, model: keras.Model) -> dict[str, np.ndarray]:
    """The values in a ``.weights.h5`` file, see ``sources.ImportSource.values``."""
    theirs, live = _layout(path), ready(model)
    must = needed(model, live)
    with tempfile.TemporaryDirectory() as beside:
        ours = _layout(_saved(model, Path(beside)))
    if not any(name.startswith(_OPTIMIZER) for name in theirs):
        ours = {n: each for n, each in ours.items() if not n.startswith(_OPTIMIZER)}
        must = {n: leaf for n, leaf in must.items() if group(n) != "optimizer"}
    require_same(path, theirs, ours)
    return by_loading(path, live, must, lambda: _load(path, model))


def model_file(path: Path, model: keras.Model) -> dict[str, np.ndarray]:
    """The same of a ``.keras`` file; its config is not looked at."""
    with zipfile.ZipFile(path) as archive, tempfile.TemporaryDirectory() as beside:
        names = {info.filename for info in archive.infolist() if not info.is_dir()}
        if _IN_KERAS not in names or names - _KNOWN:
            raise NotSupportedError(
                "Only .keras files with nothing but weights can be imported.",
                received=f"{path}: {', '.join(sorted(names - _KNOWN)) or 'no weights'}",
                hint="Load it with keras.models.load_model, and import a file that its "
                "save_weights wrote.",
            )
        return weights_file(Path(archive.extract(_IN_KERAS, beside)), model)


def _saved(model: keras.Model, directory: Path) -> Path:
    path = directory / "x.weights.h5"
    with warnings.catch_warnings():
        # Keras reads variables in a way that numpy 2.4 says will end.
        warnings.simplefilter("ignore", DeprecationWarning)
        model.save_weights(os.fspath(path))
    return path


def _load(path: Path, model: keras.Model) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is left out is found by us
        model.load_weights(os.fspath(path))


def _layout(path: Path) -> Layout:
    import h5py

    found = {}

    def visit(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset):
            # Keras stores what HDF5 has no type for under another, and says so.
            found[name] = (item.shape, str(item.attrs.get("dtype", item.dtype)))

    with h5py.File(path) as file:
        file.visititems(visit)
    return found
