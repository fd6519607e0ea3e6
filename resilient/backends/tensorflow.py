"""TensorFlow: written with its own operation, see ``tensorflow_files``.

A snapshot on the CPU copies nothing: it holds the variables' buffers, and TensorFlow
copies a buffer that someone else holds before it writes to it.

Refuses text, sparse and ragged tensors. The state of a random *kernel* (``tf.random.*``
inside a traced function, or called with an op seed) is out of reach of any library and
is not part of ``random_state``.
"""

import random
from collections.abc import Mapping
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

# All private names of TensorFlow. There is no public way to read the seed of eager
# operations, nor to ask for the global generator without creating it. A test in
# tests/state/test_rng.py fails by name when one of them vanishes.
from tensorflow.python.eager import context
from tensorflow.python.ops import stateful_random_ops

from resilient.backends.arrays import (
    check_like,
    check_stored,
    copy_array,
    not_stored,
    spread_elements,
)
from resilient.backends.base import Backend, HeldTensors, Peeked
from resilient.backends.tensorflow_files import CPU, Held, tensor_of, to_numpy


class TensorFlowBackend:
    """The adapter of TensorFlow."""

    name: ClassVar[str] = "tensorflow"
    spreads: ClassVar[bool] = False

    def snapshot(
        self, tensors: Mapping[str, Any], reuse: HeldTensors | None = None
    ) -> HeldTensors:
        here = _here()
        values = _values(tensors)
        return Held({name: _hold(value, here) for name, value in values.items()})

    def require_like(self, target: Any, value: np.ndarray) -> None:
        variable = target.value if isinstance(target, keras.Variable) else target
        check_like(target, variable.shape, variable.dtype.name, value)

    def assign(self, target: Any, value: np.ndarray) -> None:
        self.require_like(target, value)
        variable = target.value if isinstance(target, keras.Variable) else target
        # Keras's `Variable.assign` would cast. A tensor that was read is assigned
        # without a copy: nobody writes to it.
        tensor = tensor_of(value)
        if tensor is None:
            tensor = tf.constant(value, dtype=variable.dtype)
        variable.assign(tensor)

    def random_state(self) -> dict[str, Any]:
        generator = stateful_random_ops.global_generator
        # `_rng` exists only once a global seed was set.
        eager = context.context()
        seeds, seed = getattr(eager, "_rng", None), eager._seed
        return {
            "seed": None if seed is None else int(seed),
            "operation_seeds": None if seeds is None else seeds.getstate(),
            "global_generator": None
            if generator is None
            else {
                "algorithm": int(generator.algorithm),
                "state": generator.state.numpy().tolist(),
            },
        }

    def set_random_state(self, state: dict[str, Any]) -> None:
        # Also clears the cache of eager kernels, which have random state of their own.
        tf.random.set_seed(state["seed"])
        vars(context.context()).pop("_rng", None)  # as before any seed was set
        if state["operation_seeds"] is not None:
            context.context()._rng = random.Random()
            context.context()._rng.setstate(state["operation_seeds"])
        if state["global_generator"] is not None:
            _set_global_generator(**state["global_generator"])

    def peek(self, tensors: Mapping[str, Any], most: int) -> Peeked:
        here = _here()
        values = _values(tensors)
        # Keras has read the loss of this step: no device is busy.
        arrays = [to_numpy(_hold(value, here)) for value in values.values()]
        found = spread_elements(arrays, most)
        return lambda: found

    def keep_compiled(self) -> None:
        return None

    def versions(self) -> dict[str, str]:
        return {"tensorflow": str(tf.__version__)}


def _values(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors and variables behind some; refuses before anything is read."""
    values = {name: _value(name, tensor) for name, tensor in tensors.items()}
    check_stored({name: value.dtype.name for name, value in values.items()})
    return values


def _value(name: str, tensor: Any) -> Any:
    if isinstance(tensor, np.ndarray | np.generic):
        return _on_host(copy_array(name, np.asarray(tensor)))
    value = tensor.value if isinstance(tensor, keras.Variable) else tensor
    if not isinstance(value, tf.Tensor | tf.Variable):
        raise not_stored(name, type(value).__name__)
    return value


def _hold(value: Any, here: str) -> tf.Tensor:
    """The value, in memory of this host (``here``) that nobody writes to."""
    if isinstance(value, tf.distribute.DistributedValues):
        value = value.read_value()
    elif isinstance(value, tf.Variable):
        # A quarter of the time that `read_value` takes.
        value = tf.raw_ops.ReadVariableOp(resource=value.handle, dtype=value.dtype)
    # A parameter server's memory is another host's, and gone when that is.
    return value if value.device.startswith(here) else _on_host(value)


def _here() -> str:
    """The host and its kind of device: what a new tensor's name begins with."""
    return tf.constant(0).device.partition("device:")[0] + "device:CPU"  # type: ignore[no-any-return]


def _on_host(value: Any) -> tf.Tensor:
    with tf.device(CPU):
        return tf.identity(value)


def _set_global_generator(algorithm: int, state: list[int]) -> None:
    generator = stateful_random_ops.global_generator
    if generator is not None and int(generator.algorithm) == algorithm:
        # In place: traced functions use its variable.
        generator.reset(state)
    else:
        tf.random.set_global_generator(tf.random.Generator.from_state(state, algorithm))


BACKEND: Backend = TensorFlowBackend()
