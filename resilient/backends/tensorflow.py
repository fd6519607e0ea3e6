"""TensorFlow: written with ``tf.train.Checkpoint``, into ``state.*``.

``tf.train.load_checkpoint(directory)`` reads it, under the names
``tensors/<name, with each '.' doubled>/.ATTRIBUTES/VARIABLE_VALUE``.

Refuses text, sparse and ragged tensors. The state of a random *kernel* (``tf.random.*``
inside a traced function, or called with an op seed) is out of reach of any library and
is not part of ``random_state``.
"""

import os
import random
import re
from collections.abc import Mapping
from types import ModuleType
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from resilient.backends.arrays import (
    ArraySnapshot,
    check_dtype,
    check_like,
    check_names,
    copy_array,
)
from resilient.backends.base import JSON, Backend, Snapshot
from resilient.errors import NotSupportedError, describe

_PREFIX = "state"
_KEY = re.compile(r"tensors/(.+)/\.ATTRIBUTES/VARIABLE_VALUE")


class TensorFlowBackend:
    """The adapter of TensorFlow."""

    name: ClassVar[str] = "tensorflow"

    def snapshot(self, tensors: Mapping[str, Any]) -> Snapshot:
        check_names(tensors)
        arrays = {name: _host_copy(name, value) for name, value in tensors.items()}
        return ArraySnapshot(arrays, _write)

    def read(self, directory: str) -> dict[str, np.ndarray]:
        reader = tf.train.load_checkpoint(os.path.join(directory, _PREFIX))
        arrays = {}
        for key in reader.get_variable_to_shape_map():
            if found := _KEY.fullmatch(key):
                # 0-d tensors come back as numpy scalars.
                arrays[_unescape(found[1])] = np.asarray(reader.get_tensor(key))
        return arrays

    def assign(self, target: Any, value: np.ndarray) -> None:
        variable = target.value if isinstance(target, keras.Variable) else target
        check_like(target, variable.shape, variable.dtype.name, value)
        # A constant owns its bytes; `Variable.assign` of Keras would cast.
        variable.assign(tf.constant(value, dtype=variable.dtype))

    def random_state(self) -> JSON:
        context = _eager_context()
        generator = _stateful_random_ops().global_generator
        # `_rng` exists only once a global seed was set.
        rng = getattr(context, "_rng", None)
        return {
            "seed": None if context._seed is None else int(context._seed),
            "operation_seeds": None if rng is None else rng.getstate(),
            "global_generator": None
            if generator is None
            else {
                "algorithm": int(generator.algorithm),
                "state": generator.state.numpy().tolist(),
            },
        }

    def set_random_state(self, state: JSON) -> None:
        # Clears the cache of eager kernels too, which hold random state of their own.
        tf.random.set_seed(state["seed"])
        vars(_eager_context()).pop("_rng", None)  # as before any seed was set
        if state["operation_seeds"] is not None:
            version, internal, gauss = state["operation_seeds"]
            rng = random.Random()
            rng.setstate((version, tuple(internal), gauss))
            _eager_context()._rng = rng
        if state["global_generator"] is not None:
            _set_global_generator(**state["global_generator"])

    def versions(self) -> dict[str, str]:
        return {"tensorflow": str(tf.__version__)}


def _host_copy(name: str, value: Any) -> np.ndarray:
    if isinstance(value, np.ndarray | np.generic):
        return copy_array(name, np.asarray(value))
    if isinstance(value, keras.Variable):
        value = value.value
    if not isinstance(value, tf.Tensor | tf.Variable):
        raise NotSupportedError(
            describe(
                f"The tensor {name!r} is of a kind that a checkpoint cannot hold.",
                type(value).__name__,
                "Supported are dense tensors and variables of numbers and booleans.",
            )
        )
    check_dtype(name, value.dtype.name)
    # `numpy()` copies, by contract ("this method has to copy the contents to ensure
    # safety"): no later training step writes to what it returned.
    return np.asarray(value.numpy())


def _write(arrays: Mapping[str, np.ndarray], directory: str) -> None:
    with tf.device("CPU:0"):
        tensors = {name: tf.Variable(array) for name, array in arrays.items()}
    # `write` rather than `save`: no step counter, no bookkeeping of older files.
    tf.train.Checkpoint(tensors=tensors).write(os.path.join(directory, _PREFIX))
    # What `tf.train.latest_checkpoint` looks for. Relative, so that it still holds
    # after the directory was renamed.
    with open(os.path.join(directory, "checkpoint"), "w", encoding="utf-8") as file:
        file.write(f'model_checkpoint_path: "{_PREFIX}"\n')


def _unescape(name: str) -> str:
    # tf.train.Checkpoint writes '.' as '..' (and '/' as '.S', which no name holds).
    return name.replace("..", ".")


def _set_global_generator(algorithm: int, state: list[int]) -> None:
    generator = _stateful_random_ops().global_generator
    if generator is not None and int(generator.algorithm) == algorithm:
        # In place: traced functions hold on to its variable.
        generator.reset(state)
    else:
        tf.random.set_global_generator(tf.random.Generator.from_state(state, algorithm))


# TensorFlow's private names, all of them. There is no public way to read the seed of
# eager operations, nor to ask for the global generator without creating it.
# tests/backend_contract/test_random_state.py fails by name when one of them vanishes.


def _eager_context() -> Any:
    from tensorflow.python.eager import context

    return context.context()


def _stateful_random_ops() -> ModuleType:
    from tensorflow.python.ops import stateful_random_ops

    return stateful_random_ops  # type: ignore[no-any-return]


BACKEND: Backend = TensorFlowBackend()
