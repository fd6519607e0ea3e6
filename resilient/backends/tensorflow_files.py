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
from typing import Any

import numpy as np
import tensorflow as tf

from resilient.backends.arrays import EXTENSION_DTYPES
from resilient.backends.base import HeldTensors, Part

CPU = "CPU:0"
_PREFIX = "state"
_NOTHING = "/"  # in a file without tensors, since TensorFlow writes none

# Tensors that were read, by what identifies their array. (Arrays cannot be keys.)
_tensors: dict[int, tf.Tensor] = {}


class Held(HeldTensors):
    """Tensors in memory of this host, which nobody writes to."""

    def _view(self, held: tf.Tensor) -> np.ndarray:
        return to_numpy(held)

    def _write(self, held: Mapping[str, Any], directory: str, part: Part) -> list[str]:
        prefix = os.path.join(part.name, _PREFIX) if part.index else _PREFIX
        if part.index:
            os.mkdir(os.path.join(directory, part.name))
        saved = dict(held) or {_NOTHING: tf.constant(0)}
        with tf.device(CPU):
            tf.raw_ops.SaveV2(
                prefix=os.path.join(directory, prefix),
                tensor_names=list(saved),
                shape_and_slices=[""] * len(saved),
                tensors=list(saved.values()),
            )
        return [f"{prefix}.index", f"{prefix}.data-00000-of-00001"]


def read(directory: str, part: Part, *, lazy: bool) -> dict[str, np.ndarray]:
    """Arrays with TensorFlow's own memory; all of it is read, lazy or not."""
    found = _read(directory)
    return found | _read(os.path.join(directory, part.name)) if part.index else found


def _read(directory: str) -> dict[str, np.ndarray]:
    prefix = os.path.join(directory, _PREFIX)
    dtypes = tf.train.load_checkpoint(prefix).get_variable_to_dtype_map()
    names = sorted(dtypes.keys() - {_NOTHING})
    if not names:
        return {}
    with tf.device(CPU):
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
