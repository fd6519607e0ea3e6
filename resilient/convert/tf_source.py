"""Reads TensorFlow checkpoints: of objects (``tf.train.Checkpoint``), or by paths.

Objects are found by the attributes that lead to them, which requires Keras on
TensorFlow, and the model and optimizer of the program that saved.
"""

import os
import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np

from resilient import keras_internals
from resilient.backends.bundle import OBJECT_GRAPH, Bundle
from resilient.backends.paths import only_stored
from resilient.backends.stored_files import Listed, StoredFiles
from resilient.convert import object_graph
from resilient.convert.matching import (
    Layout,
    by_loading,
    by_name,
    mismatch,
    of_layout,
    require_same,
)
from resilient.convert.tensor_files import Tensors, library
from resilient.errors import NotSupportedError
from resilient.state.weights import ready
from resilient.storage.files import read_file

_MOST = 16 << 20  # bytes of the file `checkpoint`: it may list all that there were
_COUNTER = "save_counter"
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


def is_at(path: Path) -> bool:
    """Whether a path is a directory of checkpoints, or the prefix of one."""
    beside = path.with_name(f"{_prefix(path).name}.index")
    return (path / "checkpoint").is_file() or beside.is_file()


def values(path: Path, model: keras.Model) -> Tensors:
    """The values in the newest one, see ``recognise.ImportSource.values``."""
    library("tensorflow", '"keras-resilient[tensorflow]"')

    prefix = _newest(path) if path.is_dir() else _prefix(path)
    begin = f"{prefix.name}."
    listed = {
        each.name: Listed(each.stat(follow_symlinks=False).st_size)
        for each in os.scandir(prefix.parent)
        if each.name.startswith(begin) and each.is_file(follow_symlinks=False)
    }
    files = StoredFiles(os.fspath(prefix.parent), listed)
    Bundle(files, prefix.name, texts={OBJECT_GRAPH})
    with only_stored(files) as beside:
        return _values(path, os.path.join(beside, prefix.name), model)


def _newest(path: Path) -> Path:
    """What the file ``checkpoint`` of a directory names."""
    from google.protobuf import text_format
    from tensorflow.python.training.checkpoint_state_pb2 import CheckpointState

    # Not `tf.train.latest_checkpoint`, which looks for whatever pattern it names.
    raw = read_file(path, "checkpoint", _MOST)
    prefix = Path(path, text_format.Parse(raw, CheckpointState()).model_checkpoint_path)
    if prefix.parent.resolve() != path.resolve():
        raise NotSupportedError(
            "The file `checkpoint` of this directory names another directory.",
            received=f"{path}: {prefix}",
            hint="If you trust that directory, import from it by the prefix of its "
            "files.",
        )
    return prefix


def _values(path: Path, prefix: str, model: keras.Model) -> Tensors:
    import tensorflow as tf

    reader = tf.train.load_checkpoint(prefix)
    names = list(reader.get_variable_to_shape_map())
    if OBJECT_GRAPH not in names:
        by_name(path, of_layout(_layout(reader)), model)  # before any is read
        tensors = {name: np.asarray(reader.get_tensor(name)) for name in names}
        return by_name(path, tensors, model)
    if keras_internals.BACKEND != "tensorflow":
        raise NotSupportedError(
            "An object-based tf.train.Checkpoint can be read only with Keras on "
            "TensorFlow.",
            received=f"{path}, while Keras runs on {keras_internals.BACKEND}",
            hint="Set KERAS_BACKEND=tensorflow.",
        )
    ready(model)
    checkpoint = _checkpoint(tf, reader.get_tensor(OBJECT_GRAPH), model)
    counted = any(name.startswith(f"{_COUNTER}/") for name in names)
    read = checkpoint.restore if counted else checkpoint.read

    def load() -> None:
        try:
            read(prefix).assert_consumed()
        except (AssertionError, ValueError, tf.errors.InvalidArgumentError) as error:
            require_same(path, _layout(reader), _layout_now(tf, checkpoint))
            raise mismatch(path, [str(error)]) from error

    return by_loading(path, model, load)


def _layout_now(tf: Any, checkpoint: Any) -> Layout:
    """The layout of a checkpoint written now."""
    with tempfile.TemporaryDirectory() as directory:
        written = checkpoint.write(os.path.join(directory, "now"))
        return _layout(tf.train.load_checkpoint(written))


def _layout(reader: Any) -> Layout:
    dtypes = reader.get_variable_to_dtype_map()
    return {
        name.removesuffix(_VALUE): (tuple(shape), dtypes[name].name)
        for name, shape in reader.get_variable_to_shape_map().items()
        if name != OBJECT_GRAPH and not name.startswith(f"{_COUNTER}/")
    }


def _prefix(path: Path) -> Path:
    return path.with_suffix("") if path.suffix == ".index" else path


def _checkpoint(tf: Any, graph: bytes, model: keras.Model) -> Any:
    """The model and the optimizer, under the names that the source has for them."""
    root = object_graph.checked(graph).nodes[0]
    names = {child.local_name for child in root.children} - {_COUNTER}
    models = names - {"optimizer"}
    if len(models) != 1:  # the model itself is the root
        return tf.train.Checkpoint(model)
    objects = {models.pop(): model}
    if "optimizer" in names:
        objects["optimizer"] = model.optimizer
    return tf.train.Checkpoint(**objects)
