"""Saves the variables that a pipeline's functions assign, beside its iterators.

These are counters, for example, and the state of random generators
(tf.random.Generator, Keras's random layers). They outlast iterators, and no iterator's
state has them. Variables that are only read do not belong to the pipeline: they may be
those of the model in training.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import auto_control_deps_utils

from resilient.data.tf_data.iterator_state import parsed
from resilient.serialization.schema import MalformedError


class PipelineVariables:
    """The variables that a dataset's functions assign."""

    def __init__(self, dataset: Any) -> None:
        self._handles = list({id(each): each for each in _assigned(dataset)}.values())

    def get(self) -> list[np.ndarray]:
        """Their values: arrays of bytes."""
        values = [_read(handle) for handle in self._handles]
        return [
            np.frombuffer(tf.io.serialize_tensor(value).numpy(), np.uint8)
            for value in values
        ]

    def set(self, values: list[np.ndarray]) -> None:
        """Restore what ``get`` returned, in this process or another.

        Raises:
            MalformedError: The values are not such.
        """
        if len(values) != len(self._handles):
            raise MalformedError(f"{len(values)} of {len(self._handles)} variables")
        for handle, value in zip(self._handles, values, strict=True):
            tensor = parsed(value, spec(handle).dtype, "a variable")
            if not spec(handle).shape.is_compatible_with(tensor.shape):
                raise MalformedError(f"a variable of shape {tensor.shape}")
            with tf.device(handle.device):
                tf.raw_ops.AssignVariableOp(resource=handle, value=tensor)

    def specs(self) -> list[str]:
        """Their dtypes and shapes."""
        return [f"{s.dtype.name} {s.shape}" for s in map(spec, self._handles)]


def chain(dataset: Any) -> Iterator[Any]:
    """A dataset and its inputs, inputs first: the graph's order."""
    for each in dataset._inputs():
        yield from chain(each)
    yield dataset


def functions(dataset: Any) -> Iterator[Any]:
    """The functions of all datasets of a pipeline."""
    for each in chain(dataset):
        yield from (wrapper.function for wrapper in each._functions())


def captured(dataset: Any) -> Iterator[Any]:
    """Handles of captured variables, once for each function, in the graph's order."""
    for function in functions(dataset):
        yield from filter(_is_variable, function.captured_inputs)


def spec(handle: Any) -> tf.TensorSpec:
    """Shape and dtype of a variable."""
    (found,) = handle._handle_data.shape_and_type
    return tf.TensorSpec(found.shape, tf.as_dtype(found.dtype))


def _assigned(dataset: Any) -> Iterator[Any]:
    for function in functions(dataset):
        graph = function.graph
        read = auto_control_deps_utils.get_read_only_resource_input_indices_graph(graph)
        only_read = {id(graph.inputs[index]) for index in read}
        for outside, inside in graph.captures:
            if id(inside) not in only_read and _is_variable(outside):
                yield outside


def _is_variable(tensor: Any) -> bool:
    """Whether it is a variable's handle; that of a lookup table, say, has no dtype."""
    data = getattr(tensor, "_handle_data", None)
    return (
        tensor.dtype == tf.resource
        and hasattr(tensor, "numpy")
        and data is not None
        and data.is_set
        and len(data.shape_and_type) == 1
    )


def _read(handle: Any) -> Any:
    with tf.device(handle.device):
        return tf.raw_ops.ReadVariableOp(resource=handle, dtype=spec(handle).dtype)
