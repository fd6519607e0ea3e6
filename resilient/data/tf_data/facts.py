"""Facts about a tf.data pipeline, which is not iterated.

Among them are checksums of the values that a script computed and gave to it. They are
the constants of its graph: arrays, lists of files, vocabularies, numbers of a
normalisation. What was drawn ahead into a shuffle's buffer comes out of the checkpoint,
so the first batches after a resume can be right though all else is different: only a
comparison of the values themselves shows it.

Left out is what may differ between two attempts: seeds, which are restored; the values
of variables; and how much is read in parallel. Files may be in another directory.
"""

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import xxhash
from tensorflow.core.framework import types_pb2

from resilient.data import DataOptions
from resilient.data.arrays.sliced import array_fingerprint
from resilient.data.source import DataSource
from resilient.data.tf_data.graph import PipelineGraph, input_of
from resilient.data.tf_data.variables import chain, functions
from resilient.serialization import JSON

logger = logging.getLogger(__name__)

FILES = "the directory of files"

# Inputs of datasets that change no batch.
_FREE = ("num_parallel_calls", "buffer_output_elements", "prefetch_input_elements")
_FREE_OF = {
    "PrefetchDataset": "buffer_size",
    "CacheDatasetV2": "filename",
    "SnapshotDatasetV2": "path",
    "LoadDataset": "path",
}
# Attributes with values of layers and of Python.
_VALUES = ("boundaries", "key", "pattern", "rewrite")

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


def checksums_of_constants(dataset: Any, graph: PipelineGraph | None) -> dict[str, str]:
    """The checksum of all constants that each type of operation takes.

    Args:
        dataset: The pipeline.
        graph: Its graph; without one, only the data that it holds in memory counts.
    """
    found: dict[str, xxhash.xxh3_128] = {}
    for op, value in _in_memory(dataset) if graph is None else _in_graph(graph):
        found.setdefault(op, xxhash.xxh3_128()).update(value)
    return {op: each.hexdigest() for op, each in found.items()}


def check_constants(
    before: Mapping[str, str], now: Mapping[str, str], source: DataSource
) -> None:
    """Refuse a pipeline of other values, or warn where the user accepts them.

    Validation data that changed is always accepted.

    Args:
        before: The checksums in the checkpoint.
        now: Those of this pipeline.
        source: The pipeline.

    Raises:
        DataNotResumableError: The values differ, other than by a directory.
    """
    found = {op for op in before.keys() | now if before.get(op) != now.get(op)}
    if FILES in found:
        logger.warning(
            "%s reads files in another directory now; they have to be the same files.",
            source.argument,
        )
    if others := sorted(found - {FILES}):
        accepted = source.settings.argument == "validation_data"
        options = DataOptions("warn") if accepted else source.settings.options
        options.refuse(
            "The data is different: this script gave the pipeline other values (files "
            "or their order, labels, a vocabulary, numbers).",
            received=f"{source.argument}: constants of {', '.join(others)}",
            hint="Make the script compute the same in every process: pass seed= or "
            "shuffle=False to image_dataset_from_directory and the like, and seed all "
            "else that it draws or splits.",
        )


def _in_memory(dataset: Any) -> Iterator[tuple[str, bytes]]:
    for each in chain(dataset):
        for tensor in getattr(each, "_tensors", ()):
            known = isinstance(tensor, tf.Tensor) and tensor.dtype != tf.variant
            if known and tensor.shape.rank:
                yield type(each).__name__, repr(array_fingerprint(tensor)).encode()


def _in_graph(graph: PipelineGraph) -> Iterator[tuple[str, bytes]]:
    seeds = [each.seeds for each in graph.seeded]
    for each in graph.seeded:
        each.seeds = [0, 0]
    yield from _of(graph.definition.node)
    # TensorFlow's own functions of these have the number of processors in them.
    for function in graph.functions(but=("Snapshot", "LoadDataset")):
        for _, value in _of(function.node_def):
            yield "functions", value
    for each, its_own in zip(graph.seeded, seeds, strict=True):
        each.seeds = its_own


def _of(nodes: Any) -> Iterator[tuple[str, bytes]]:
    constants = {
        node.name: node.attr["value"].tensor
        for node in nodes
        if node.op == "Const" and node.attr["dtype"].type != types_pb2.DT_RESOURCE
    }
    for node in nodes:
        for name in (name for name in _VALUES if name in node.attr):
            yield node.op, node.attr[name].SerializeToString(deterministic=True)
        names = (*_FREE, _FREE_OF.get(node.op, ""))
        free = {input_of(node, name) for name in names}
        inputs = [name.partition(":")[0] for name in node.input]
        values = [constants[n] for n in inputs if n in constants and n not in free]
        if node.op == "LookupTableImportV2":  # in an order of its own
            pairs = zip(*(_parsed(value) for value in values), strict=True)
            yield node.op, repr(sorted(pairs)).encode()
        elif "Assign" not in node.op:
            for value in values:
                yield from _bytes(node.op, value)


def _bytes(op: str, value: Any) -> Iterator[tuple[str, bytes]]:
    """What counts of a constant; files may be in another directory."""
    if value.dtype != types_pb2.DT_STRING:
        yield op, value.SerializeToString(deterministic=True)
        return
    texts = np.ravel(_parsed(value)).tolist()
    same = os.path.commonprefix(texts) or b""  # noqa: RUF071  # URLs, too
    folder = same.rpartition(b"/")[0]
    if folder[:1] == b"/" or b"://" in folder:
        yield FILES, folder
        texts = [text.removeprefix(folder) for text in texts]
    yield op, repr(texts).encode()


def _parsed(value: Any) -> list[Any]:
    with tf.device("/CPU:0"):
        found = tf.io.parse_tensor(value.SerializeToString(), value.dtype)
    rows: list[Any] = np.atleast_1d(found.numpy()).tolist()
    return rows
