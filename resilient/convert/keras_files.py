"""Loads and saves ``.weights.h5`` and ``.keras`` through Keras, and verifies that.

Keras silently skips what it cannot save, and what does not fit when it loads. So a file
is compared with what Keras would save for the model, and whatever Keras wrote or read
is verified to set every variable.
"""

import errno
import math
import os
import shutil
import tempfile
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np

from resilient.backends import get_backend
from resilient.convert.hdf5_files import layout
from resilient.convert.matching import by_loading, require_same, set_by
from resilient.convert.tensor_files import Tensors
from resilient.errors import NotSupportedError, warn_not_exact
from resilient.saving.record import SavedState
from resilient.saving.run_json import RunJson
from resilient.state.variables import Leaf, kept
from resilient.state.weights import group, needed, put, ready

_IN_KERAS = "model.weights.h5"
_KNOWN = {"config.json", "metadata.json", _IN_KERAS}
_OPTIMIZER = "optimizer/"
# Bytes beside the values, at most: measured are 1,100 for a variable, 2,100 for a
# layer without.
_A_GROUP, _A_FILE = 1 << 12, 1 << 16


def read_weights(file: Path, model: keras.Model, source: Path | None = None) -> Tensors:
    """The values in a ``.weights.h5`` file; messages call it ``source``."""
    source = source or file
    ready(model)  # or Keras would save no optimizer
    theirs = layout(file)
    with tempfile.TemporaryDirectory() as directory:
        like = Path(directory) / "x.weights.h5"
        _save(model, like)
        ours = layout(like)
    optimizer = any(name.startswith(_OPTIMIZER) for name in theirs)
    if not optimizer:
        ours = {n: each for n, each in ours.items() if not n.startswith(_OPTIMIZER)}
    require_same(source, theirs, ours)
    return by_loading(source, model, lambda: _load(model, file), optimizer=optimizer)


def read_model(file: Path, model: keras.Model) -> Tensors:
    """The same of a ``.keras`` file, a zip file; its config is not looked at."""
    with zipfile.ZipFile(file) as archive, tempfile.TemporaryDirectory() as directory:
        _require_weights_alone(file, archive)
        inner = Path(directory) / _IN_KERAS
        with archive.open(_IN_KERAS) as packed, inner.open("xb") as unpacked:
            shutil.copyfileobj(packed, unpacked)
        return read_weights(inner, model, source=file)


def _require_weights_alone(file: Path, archive: zipfile.ZipFile) -> None:
    """Refuse what ``read_weights`` would leave out, or what fills the disk.

    Raises:
        NotSupportedError: The file has more than weights, or is compressed.
    """
    names = {entry.filename for entry in archive.infolist() if not entry.is_dir()}
    if _IN_KERAS not in names or names - _KNOWN:
        raise NotSupportedError(
            "A .keras file can be imported only if it holds weights and nothing else.",
            received=f"{file}: {', '.join(sorted(names - _KNOWN)) or 'no weights'}",
            hint="Load it with keras.models.load_model, and import a file that its "
            "save_weights wrote.",
        )
    weights = archive.getinfo(_IN_KERAS)
    stored = weights.compress_type == zipfile.ZIP_STORED
    if not stored or weights.file_size > file.stat().st_size:
        raise NotSupportedError(
            "The weights in this .keras file are compressed or incomplete.",
            received=f"{file}: {weights.file_size:,} bytes in the file's "
            f"{file.stat().st_size:,}",
            hint="Import a file that Keras's save wrote.",
        )


def write(
    path: Path, model: keras.Model, saved: SavedState[RunJson], source: Path
) -> None:
    """Save a checkpoint's weights and optimizer as Keras would; the model is restored.

    The ending of ``path`` tells Keras the format; messages call the checkpoint
    ``source``.

    Raises:
        CheckpointMismatchError: The checkpoint is of another model.
        NotSupportedError: Keras would not save all of it.
    """
    live = ready(model)
    with kept(get_backend(), live):
        pairs = put(model, saved.run.variables, saved.tensors, source)
        if path.suffix == ".h5":  # .keras is put together in memory
            _require_room(path, model, live)
        _save(model, path)
        found = set_by(live, lambda: _load(model, path))
    must = needed(model, live)
    lost = [
        leaf.path
        for old, leaf in pairs
        if leaf.name in must
        and not _is_same(found.get(leaf.name), saved.tensors[old["name"]])
    ]
    if lost:
        raise NotSupportedError(
            "Keras does not save and load the whole model in this format.",
            received="\n  " + "\n  ".join(lost),
            hint="Export to .safetensors, which holds every variable.",
        )
    extra = [v["path"] for v in saved.run.variables if group(v["name"]) == "extra"]
    if extra:
        warn_not_exact(f"{path.suffix} files cannot hold these variables", extra)


def _require_room(path: Path, model: keras.Model, live: Sequence[Leaf]) -> None:
    """Raise OSError where a disk is too full: libhdf5 may end the process there."""
    if not hasattr(os, "posix_fallocate"):  # macOS
        return
    size = sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in live)
    groups = len(live) + sum(1 for _ in model._flatten_layers())
    with open(path, "xb") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size + groups * _A_GROUP + _A_FILE)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise


def _is_same(found: np.ndarray | None, saved: object) -> bool:
    return found is not None and found.tobytes() == np.asarray(saved).tobytes()


def _save(model: keras.Model, path: Path) -> None:
    save = model.save if path.suffix == ".keras" else model.save_weights
    with warnings.catch_warnings():
        # Keras reads variables in a way that numpy 2.4 deprecates.
        warnings.simplefilter("ignore", DeprecationWarning)
        save(os.fspath(path))


def _load(model: keras.Model, path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # we find what it leaves out
        model.load_weights(os.fspath(path))
