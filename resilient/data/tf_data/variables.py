"""The variables that a pipeline's functions use.

Those that functions assign are saved beside the iterators: counters, for example, and
the state of random generators (tf.random.Generator, Keras's random layers). They
outlast iterators, and no iterator's state has them. Variables that are only read do not
belong to the pipeline: they may be those of the model in training.

TensorFlow writes a captured variable into a pipeline's graph as a new variable with the
current value. Datasets that are made from graphs here use the user's own variables
instead.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, types_pb2
from tensorflow.python.data.ops import dataset_ops
from tensorflow.python.framework import auto_control_deps_utils
from tensorflow.python.ops import gen_experimental_dataset_ops


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
        """Restore what ``get`` returned, in this process or another."""
        for handle, value in zip(self._handles, values, strict=True):
            tensor = tf.io.parse_tensor(value.tobytes(), spec(handle).dtype)
            with tf.device(handle.device):
                tf.raw_ops.AssignVariableOp(resource=handle, value=tensor)


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


class Captured:
    """The variables that a dataset's functions captured, and their places in its graph.

    Attributes:
        known: Whether it is clear which variable belongs where.
    """

    def __init__(self, dataset: Any, definition: Any) -> None:
        self._handles = list(captured(dataset))
        copies = list(_copies(definition))
        self._places = [place.name for place, _ in copies]
        self.known = [_spec_of_copy(copy) for _, copy in copies] == [
            spec(handle) for handle in self._handles
        ]

    def dataset(self, definition: Any, element_spec: Any) -> Any:
        """The dataset of a graph, which may have been edited."""
        if not self._handles:
            return from_graph(definition, element_spec)
        open_graph, root = _opened(definition, set(self._places))

        @tf.function(autograph=False)  # type: ignore[untyped-decorator]
        def build(*handles: Any) -> Any:
            places = [f"{name}:0" for name in self._places]
            (variant,) = tf.graph_util.import_graph_def(
                open_graph,
                input_map=dict(zip(places, handles, strict=True)),
                return_elements=[root],
                name="",
            )
            return variant

        return dataset_ops._VariantDataset(build(*self._handles), element_spec)


def from_graph(definition: Any, element_spec: Any) -> Any:
    """The dataset of a graph, as TensorFlow makes it."""
    variant = gen_experimental_dataset_ops.dataset_from_graph(
        definition.SerializeToString()
    )
    return dataset_ops._VariantDataset(variant, element_spec)


def _copies(definition: Any) -> list[Any]:
    """The nodes of captured variables, each with the node of its copy."""
    by_name = {node.name: node for node in definition.node}
    found = []
    for node in definition.node:
        copy = by_name.get(node.input[0]) if node.op == "Identity" else None
        if copy is not None and copy.op == "VarHandleOp":
            found.append((node, copy))
    return found


def _spec_of_copy(copy: Any) -> tf.TensorSpec:
    shape, dtype = copy.attr["shape"].shape, copy.attr["dtype"].type
    return tf.TensorSpec(shape, tf.as_dtype(dtype))


def _opened(definition: Any, places: set[str]) -> tuple[Any, str]:
    """The graph without copies of variables, and the name of its dataset."""
    found = graph_pb2.GraphDef.FromString(definition.SerializeToString())
    del found.node[:]
    left_out, root = set(), ""
    for node, copy in _copies(definition):
        # The variable, and the operation that initialises it.
        left_out |= {copy.name, *(name.lstrip("^") for name in node.input)}
    for node in definition.node:
        if node.op == "_Retval":
            root = node.input[0]
        elif node.name in places:
            place = found.node.add(name=node.name, op="Placeholder")
            place.attr["dtype"].type = types_pb2.DT_RESOURCE
        elif node.name not in left_out:
            found.node.append(node)
    return found, root if ":" in root else f"{root}:0"
