"""Reads and sets the state of tf.data iterators, and state that outlasts them.

``tf.train.Checkpoint`` saves the same state of an iterator, but only to files.
TensorFlow refuses pipelines with state outside the iterator: Python functions, stateful
random operations, variables that change.

No iterator's state has variables that functions assign, random generators that Python
functions draw from, and the number of draws of each shuffle.

``shuffle`` takes the seed of each iteration from a generator that belongs to the
dataset and outlasts its iterators; the pipeline's graph refers to it by name. An
iterator's state holds the number of draws, but only while its shuffle is in use: not
under an exhausted ``batch``, nor in the second half of a ``concatenate``. So for each
generator we create an iterator of a shuffle over no data with that name, whose small
state has that number. Nothing else in states is read or written here. Creating such an
iterator draws once, which is undone.
"""

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import dataset_pb2, tensor_pb2, types_pb2
from tensorflow.python.ops import (
    gen_dataset_ops,
    gen_experimental_dataset_ops,
    script_ops,
)

from resilient.data.source import SourceContext
from resilient.data.tf_data.graph import PipelineGraph, input_of
from resilient.data.tf_data.variables import PipelineVariables
from resilient.objects.attributes import generators, unclaimed
from resilient.serialization import JSON, rng

_IGNORE = tf.data.experimental.ExternalStatePolicy.IGNORE.value
_FAIL = tf.data.experimental.ExternalStatePolicy.FAIL.value
_FIRST = b"@@epoch_num_random_samples@@"  # the first value in a shuffle's state
# How the field `variant_val` of a TensorProto begins.
_VARIANT_VAL = bytes([tensor_pb2.TensorProto.VARIANT_VAL_FIELD_NUMBER << 3 | 2])
_RESHUFFLES = ("reshuffle_each_iteration", "rerandomize_each_iteration")


def read(iterator: Any, *, known: bool = True) -> Any:
    """The state of an iterator: a vector of variants.

    Args:
        iterator: At any batch.
        known: Whether the pipeline is known to have no state outside the iterator.
            TensorFlow also counts a variable that is only read.

    Raises:
        tf.errors.OpError: A part of the pipeline cannot be saved.
    """
    return gen_dataset_ops.serialize_iterator(
        iterator._iterator_resource, external_state_policy=_IGNORE if known else _FAIL
    )


def write(iterator: Any, state: Any) -> None:
    """Set an iterator of an equal pipeline to what ``read`` returned."""
    gen_dataset_ops.deserialize_iterator(iterator._iterator_resource, state)


def save(iterator: Any, *, known: bool = True) -> np.ndarray:
    """The same state as an array of bytes."""
    state = tf.io.serialize_tensor(read(iterator, known=known))
    return np.frombuffer(state.numpy(), np.uint8)


def restore(iterator: Any, state: np.ndarray) -> None:
    """Set an iterator of an equal pipeline to what ``save`` returned.

    Raises:
        tf.errors.OpError: It belongs to a different pipeline.
    """
    write(iterator, tf.io.parse_tensor(state.tobytes(), tf.variant))


class UnknownFormat(Exception):
    """TensorFlow stores iterator states in an unknown way."""


class SeedCount:
    """The draws from one seed generator.

    Args:
        dataset: A shuffle over no data that draws from it.

    Raises:
        UnknownFormat: Nothing was changed, except for one or two draws.
    """

    def __init__(self, dataset: Any) -> None:
        self._iterator = iter(dataset)
        first = self.get()
        iter(dataset)
        self.set(2 * first - self.get())  # as before the two draws

    def get(self) -> int:
        return int(_values(self._parts()[1])[0])

    def set(self, count: int) -> None:
        with tf.device("/CPU:0"):
            place, shuffle, parts = self._parts()
            values = [tf.constant(count, tf.int64), *_values(shuffle)[1:]]
            compressed = gen_experimental_dataset_ops.compress_element(values)
            shuffle.tensors[0].variant_val[0].CopyFrom(_message(compressed))
            parts[place] = _variant(shuffle)
            write(self._iterator, tf.stack(parts))

    def _parts(self) -> tuple[int, Any, list[Any]]:
        """The place of the shuffle in the state, its message, and all parts."""
        with tf.device("/CPU:0"):
            parts = tf.unstack(read(self._iterator))
            messages = list(map(_message, parts))
        for place, message in enumerate(messages):
            if _FIRST in message.metadata:
                return place, message, parts
        raise UnknownFormat("no count in the state of a shuffle")


def _values(shuffle: Any) -> list[Any]:
    """The values in a shuffle's state, the count first."""
    try:
        (compressed,) = shuffle.tensors[0].variant_val
        element = dataset_pb2.CompressedElement.FromString(compressed.metadata)
        count = len(element.component_metadata)
        found: list[Any] = gen_experimental_dataset_ops.uncompress_element(
            _variant(compressed), [tf.int64] * count, [[]] * count
        )
    except Exception as error:  # whatever the mismatch
        raise UnknownFormat("values that are not compressed integers") from error
    return found


def _message(variant: Any) -> Any:
    """The protobuf message that TensorFlow writes for a variant."""
    tensor = tensor_pb2.TensorProto.FromString(tf.io.serialize_tensor(variant).numpy())
    # The message comes after its length, as in a field of another message.
    field = _VARIANT_VAL + tensor.tensor_content
    return tensor_pb2.TensorProto.FromString(field).variant_val[0]


def _variant(message: Any) -> Any:
    tensor = tensor_pb2.TensorProto(
        dtype=types_pb2.DT_VARIANT, tensor_shape={}, variant_val=[message]
    )
    return tf.io.parse_tensor(tensor.SerializeToString(), tf.variant)


def count_draws(graph: PipelineGraph) -> list[SeedCount]:
    """The counts of the generators that outlast iterators."""
    return [SeedCount(_of_no_data(handle)) for _, handle in _generators(graph)]


def with_own_generators(graph: PipelineGraph) -> list[SeedCount]:
    """Give each shuffle a new generator with its seeds, which may have changed."""
    counts = []
    by_node = {id(seeded.node): seeded.seeds for seeded in graph.seeded}
    for node, handle in _generators(graph, all_of_them=True):
        handle.name = "none"  # then it creates its own
        if not _reshuffles(node):
            continue
        own = _of_no_data(handle, by_node[id(node)])
        ((_, made),) = _generators(PipelineGraph(own))
        handle.CopyFrom(made)
        counts.append(SeedCount(own))
    return counts


def _generators(graph: PipelineGraph, *, all_of_them: bool = False) -> list[Any]:
    """Each shuffle, and the name of its generator."""
    by_name = {node.name: node for node in graph.definition.node}
    found = []
    for node in graph.definition.node:
        source = by_name.get(input_of(node, "seed_generator"))
        if source is not None and (all_of_them or _reshuffles(node)):
            (handle,) = source.attr["value"].tensor.resource_handle_val
            found.append((node, handle))
    return found


def _reshuffles(node: Any) -> bool:
    return any(node.attr[name].b for name in _RESHUFFLES if name in node.attr)


def _of_no_data(handle: Any, seeds: list[int] | None = None) -> Any:
    """A shuffle over no data that uses a generator, or creates one of that name."""
    graph = PipelineGraph(tf.data.Dataset.range(0).shuffle(1, seed=1))
    ((_, own),) = _generators(graph)
    own.CopyFrom(handle)
    if seeds is not None:
        graph.seeded[0].seeds = seeds
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    options.experimental_optimization.inject_prefetch = False
    return graph.dataset().with_options(options)


class Lasting:
    """Gets and sets what outlasts a pipeline's iterators."""

    def __init__(self, variables: PipelineVariables) -> None:
        self.counts: list[SeedCount] = []
        self._variables = variables
        self._generators: dict[str, Any] = {}

    def find_generators(self, nodes: Iterable[Any], settings: SourceContext) -> None:
        """Include the random generators of Python functions among these operations."""
        functions = {str(i): each for i, each in enumerate(_python_functions(nodes))}
        self._generators = unclaimed(generators(functions), settings.claimed)
        settings.drawn_ahead.update(map(id, self._generators.values()))

    def get(self) -> JSON:
        return {
            "counts": [count.get() for count in self.counts],
            "variables": self._variables.get(),
            "generators": rng.states(self._generators),
        }

    def set(self, state: JSON) -> None:
        """Restore what ``get`` returned, in this process or another."""
        for count, value in zip(self.counts, state["counts"], strict=False):
            count.set(value)
        self._variables.set(state["variables"])
        rng.set_states(self._generators, state["generators"])


def _python_functions(nodes: Iterable[Any]) -> Iterator[Any]:
    """The user's Python functions that the pipeline calls."""
    for token in (node.attr["token"].s for node in nodes if "token" in node.attr):
        function = script_ops._py_funcs.get(token.decode())
        function = getattr(function, "_func", function)  # unwraps a py_function
        if not inspect.isfunction(function):
            continue
        # TensorFlow wraps it to keep AutoGraph away.
        function = inspect.getclosurevars(function).nonlocals.get("func", function)
        # A method of the object that holds from_generator's generator function.
        owner = getattr(function, "__self__", None)
        yield getattr(owner, "_generator", function)
