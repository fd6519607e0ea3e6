"""Makes a dataset from a pipeline's graph, with the variables that it captured.

TensorFlow writes a captured variable into the graph as a new variable with the current
value. Datasets made here use the user's own variables instead.
"""

from typing import Any

import tensorflow as tf
from tensorflow.core.framework import graph_pb2, types_pb2
from tensorflow.python.data.ops import dataset_ops
from tensorflow.python.ops import gen_experimental_dataset_ops

from resilient.data.tf_data import variables


class Captured:
    """The variables that a dataset's functions captured, and their places in its graph.

    Attributes:
        known: Whether it is clear which variable belongs where.
    """

    def __init__(self, dataset: Any, definition: Any) -> None:
        self._handles = list(variables.captured(dataset))
        copies = list(_copies(definition))
        self._places = [place.name for place, _ in copies]
        self.known = [_spec(copy) for _, copy in copies] == [
            variables.spec(handle) for handle in self._handles
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


def _spec(copy: Any) -> tf.TensorSpec:
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
