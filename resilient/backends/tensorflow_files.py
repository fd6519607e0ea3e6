"""TensorFlow's checkpoint files, ``state.*``: written and read by its own operations.

``tf.train.load_checkpoint(directory / "state")`` reads them, under the tensors' names.
The operations are those that ``tf.train.Checkpoint`` calls: its Python takes longer
than writing ten megabytes, and holds the interpreter that training needs.

    state.*                 what process 0 has
    process-1-of-2/state.*  what only process 1 has
"""

import os
import weakref
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from resilient.backends.arrays import EXTENSION_DTYPES
from resilient.backends.base import ALONE, Part
from resilient.backends.stored import decoding, plain

CPU = "CPU:0"
_PREFIX = "state"
_NOTHING = "/"  # in a file without tensors, since TensorFlow writes none


# Tensors that were read, by what identifies their array. (Arrays cannot be keys.)
_tensors: dict[int, tf.Tensor] = {}


def write(tensors: Mapping[str, tf.Tensor], directory: str, part: Part) -> None:
    """Write the tensors of a process into an existing directory without any."""
    if part.index:
        directory = os.path.join(directory, part.name)
        os.mkdir(directory)
    with plain(directory) as path, tf.device(CPU):
        saved = dict(tensors) or {_NOTHING: tf.constant(0)}
        tf.raw_ops.SaveV2(
            prefix=os.path.join(path, _PREFIX),
            tensor_names=list(saved),
            shape_and_slices=[""] * len(saved),
            tensors=list(saved.values()),
        )


def read(
    directory: str, part: Part = ALONE, *, lazy: bool = False
) -> dict[str, np.ndarray]:
    """What all processes have, and what only this part has, read-only.

    Args:
        directory: What ``write`` filled, of all processes.
        part: Whose.
        lazy: Without effect: all of it is read.

    Raises:
        CorruptCheckpointError: Its files hold something else.
    """
    found = _read(directory)
    return found | _read(os.path.join(directory, part.name)) if part.index else found


def _read(directory: str) -> dict[str, np.ndarray]:
    with decoding(_PREFIX), plain(directory) as path, tf.device(CPU):
        prefix = os.path.join(path, _PREFIX)
        dtypes = tf.train.load_checkpoint(prefix).get_variable_to_dtype_map()
        names = sorted(dtypes.keys() - {_NOTHING})
        if not names:
            return {}
        tensors = tf.raw_ops.RestoreV2(
            prefix=prefix,
            tensor_names=names,
            shape_and_slices=[""] * len(names),
            dtypes=[dtypes[name] for name in names],
        )
        return {n: _restored(t) for n, t in zip(names, tensors, strict=True)}


def _restored(tensor: tf.Tensor) -> np.ndarray:
    array = to_numpy(tensor)
    _tensors[id(array)] = tensor
    weakref.finalize(array, _tensors.pop, id(array))
    return array


def tensor_of(array: np.ndarray) -> tf.Tensor | None:
    """The tensor behind an array that was read: assigning it makes no copy."""
    return _tensors.get(id(array))


def to_numpy(tensor: tf.Tensor) -> np.ndarray:
    """The tensor as a read-only array; not copied if it gives its buffer."""
    extension = tensor.dtype.name in EXTENSION_DTYPES
    array = np.asarray(tensor.numpy() if extension else memoryview(tensor))
    array.flags.writeable = False
    return array
