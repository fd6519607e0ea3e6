"""Reads facts about a tf.data pipeline without iterating it."""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from resilient.data.tf_data.graph import PipelineGraph, input_of
from resilient.data.tf_data.variables import PipelineVariables, chain, functions
from resilient.serialization import JSON

# The most data, in bytes, that a pipeline may hold in memory for us to make its graph,
# which copies all of it.
LARGE_GRAPH = 2**29

# Operations whose iterators are replayed, in lower case: TensorFlow hangs when it saves
# a restored iterator over the first with an exhausted input; restores the second at the
# wrong line; and damages the files of the third, if it saves while they are written.
_NOT_SAVED = ("directedinterleavedataset", "csvdataset", "snapshotdataset")


def is_not_saved(operations: Iterable[str]) -> bool:
    """Whether no iterator over these operations may be saved."""
    return any(each in op.lower() for op in operations for each in _NOT_SAVED)


def fingerprint(dataset: Any, graph: PipelineGraph | None) -> JSON:
    """Facts for the fingerprint of a run."""
    found: JSON = {
        "kind": "tf.data",
        "element_spec": str(dataset.element_spec),
        "cardinality": int(dataset.cardinality()),
    }
    if specs := PipelineVariables(dataset).specs():
        found["variables"] = specs
    return found if graph is None else found | {"operations": graph.operations()}


def graph_of(dataset: Any) -> PipelineGraph | None:
    """The graph of a pipeline.

    None if it would be too large, has operations that no graph can have (copies to a
    device), or if it is unclear where its variables belong in a dataset made from it.
    """
    nbytes = sum(
        tensor.dtype.size * int(tensor.shape.num_elements() or 0)
        for each in chain(dataset)
        for tensor in getattr(each, "_tensors", ())
        if isinstance(tensor, tf.Tensor) and tensor.shape.is_fully_defined()
    )
    try:
        graph = PipelineGraph(dataset) if nbytes <= LARGE_GRAPH else None
    except tf.errors.FailedPreconditionError:
        return None
    return None if graph is None or graph.has_copies else graph


def nodes_in_functions(dataset: Any) -> list[Any]:
    """The operations of all functions of a pipeline's Python objects."""
    found: list[Any] = []
    for outer in functions(dataset):
        definition = outer.graph.as_graph_def()
        found += definition.node
        for function in definition.library.function:
            found += function.node_def
    return found


def shuffles(dataset: Any) -> list[Any]:
    """The shuffles among the Python objects of a pipeline."""
    return [each for each in chain(dataset) if hasattr(each, "_seed2")]


def caches_in_memory(graph: PipelineGraph) -> list[Any]:
    """The datasets of a pipeline that cache in memory; they share its caches."""
    by_name = {node.name: node for node in graph.definition.node}
    return [
        graph.rooted_at(node)
        for node in graph.nodes("CacheDataset")
        if tf.make_ndarray(by_name[input_of(node, "filename")].attr["value"].tensor)
        == b""
    ]
