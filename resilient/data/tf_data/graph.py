"""Turns a tf.data pipeline into a graph, to edit seeds and list operations.

``shuffle`` without a seed draws one that only its C++ object knows. In the pipeline's
graph we can set a seed, and set it again in a resumed run. A dataset made from such a
graph is the same pipeline: same operations, same order.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, types_pb2
from tensorflow.python.framework import op_def_registry

from resilient.data.tf_data.variables import Captured, from_graph

_IGNORE = tf.data.experimental.ExternalStatePolicy.IGNORE
_FAIL = tf.data.experimental.ExternalStatePolicy.FAIL

# Stateful operations whose state the iterator's state covers.
_HARMLESS = ("Assert", "Print", "PrintV2", "DummySeedGenerator", "VarHandleOp")
_CALLS = ("StatefulPartitionedCall", "If", "While", "Case")


class Seeded:
    """An operation whose draws are selected by two seeds.

    Attributes:
        op: Its type.
        inside: Whether it is inside a function, which may be called many times.
    """

    def __init__(self, node: Any, places: list[Any], *, inside: bool) -> None:
        self.op: str = node.op
        self.inside = inside
        self.node = node
        self._places = places

    @property
    def seeds(self) -> list[int]:
        return [int(get()) for get, _ in self._places]

    @seeds.setter
    def seeds(self, seeds: list[int]) -> None:
        for (_, put), seed in zip(self._places, seeds, strict=True):
            put(seed)

    @property
    def unseeded(self) -> bool:
        return not any(self.seeds)


class PipelineGraph:
    """The graph of a dataset."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset  # keeps what it captured alive
        self._element_spec = dataset.element_spec
        serialized = dataset._as_serialized_graph(external_state_policy=_IGNORE)
        self.definition = graph_pb2.GraphDef.FromString(serialized.numpy())
        self._captured = Captured(dataset, self.definition)
        self.seeded = list(self._find_seeded())

    @property
    def has_copies(self) -> bool:
        """Whether a dataset made from this graph would copy variables."""
        return not self._captured.known

    def dataset(self) -> Any:
        """A dataset made from this graph, including its edits."""
        return self._captured.dataset(self.definition, self._element_spec)

    def rooted_at(self, node: Any) -> Any:
        """The part of the pipeline up to one of its operations."""
        part = graph_pb2.GraphDef.FromString(self.definition.SerializeToString())
        for each in part.node:
            if each.op == "_Retval":
                each.input[:] = [node.name]
        shapes, types = (node.attr[f"output_{x}"].list for x in ("shapes", "types"))
        spec = tuple(map(tf.TensorSpec, shapes.shape, types.type))
        return from_graph(part, spec)

    def operations(self) -> list[str]:
        return [node.op for node in self.definition.node if "Dataset" in node.op]

    def all_operations(self) -> set[str]:
        """Types of all operations, including those in functions."""
        inside = {node.op for node in self.nodes_inside()}
        return inside | {node.op for node in self.definition.node}

    def nodes(self, op: str) -> list[Any]:
        return [node for node in self.definition.node if node.op.startswith(op)]

    def state_outside(self) -> list[str]:
        """Types of operations with state outside the iterator."""
        try:
            self._dataset._as_serialized_graph(external_state_policy=_FAIL)
        except tf.errors.FailedPreconditionError:
            pass
        else:
            return []
        found = {node.op for node in self.nodes_inside() if is_stateful(node.op)}
        changed = {op for op in found if "Assign" in op}
        return sorted(found if changed else found - {"ReadVariableOp"})

    def draws_in_parallel(self) -> list[str]:
        """Random operations in functions that are called in parallel, in words."""
        library = {f.signature.name: f for f in self.definition.library.function}
        found = []
        for nodes in self.definition.node, *(f.node_def for f in self.functions()):
            by_name = {node.name: node for node in nodes}
            for node in (each for each in nodes if _is_parallel(each, by_name)):
                inside = {n.op for f in _reached([node], library) for n in f.node_def}
                drawn = sorted(op for op in inside if _is_draw(op))
                found += [f"{node.op}: {', '.join(drawn)}"] if drawn else []
        return found

    def hide_generators(self) -> bool:
        """Keep shuffles inside functions from counting as stateful.

        They share no generator. TensorFlow expresses that with a stateful operation, or
        with the name of a generator that does not exist.

        Returns:
            Whether there are any.
        """
        found = False
        for function in self.functions():
            for node in function.node_def:
                if node.op == "DummySeedGenerator":
                    _hide(node, function.node_def)
                    found = True
        return found

    def functions(self, but: Sequence[str] = ()) -> Iterator[Any]:
        """Functions in the order in which operations refer to them.

        Args:
            but: Leave out those that only operations with such names refer to.
        """
        library = {f.signature.name: f for f in self.definition.library.function}
        nodes = [n for n in self.definition.node if not any(b in n.op for b in but)]
        return _reached(nodes, library)

    def nodes_inside(self) -> Iterator[Any]:
        """The operations of all functions."""
        for function in self.functions():
            yield from function.node_def

    def _find_seeded(self) -> Iterator[Seeded]:
        yield from _seeded(self.definition.node, inside=False)
        for function in self.functions():
            yield from _seeded(function.node_def, inside=True)


def _hide(node: Any, neighbours: Any) -> None:
    name = node.name
    node.Clear()
    node.name, node.op = name, "Const"
    node.attr["dtype"].type = types_pb2.DT_RESOURCE
    tensor = node.attr["value"].tensor
    tensor.dtype = types_pb2.DT_RESOURCE
    tensor.tensor_shape.SetInParent()
    tensor.resource_handle_val.add(name="none", container="none")
    for each in neighbours:
        inputs = [i.replace(f"{name}:handle:", f"{name}:output:") for i in each.input]
        each.input[:] = inputs


def is_stateful(op: str) -> bool:
    """Whether operations of this type have state outside the iterator."""
    definition = op_def_registry.get(op)
    return (
        definition is not None
        and definition.is_stateful
        and op not in (*_HARMLESS, *_CALLS)
        and "Dataset" not in op
        and not op.startswith("LookupTable")
    )


def _is_draw(op: str) -> bool:
    """Whether operations of this type change the state of a random generator."""
    definition = op_def_registry.get(op)
    seeded = definition and any(each.name == "seed" for each in definition.attr)
    return is_stateful(op) and (bool(seeded) or "Rng" in op or "Assign" in op)


def _is_parallel(node: Any, by_name: dict[str, Any]) -> bool:
    """Whether it calls its function several times at once."""
    if "Interleave" in node.op:
        return "Parallel" in node.op
    calls = by_name.get(input_of(node, "num_parallel_calls"))
    one = calls is not None and calls.op == "Const" and _value(calls)[0]() == 1
    return not one and ("Parallel" in node.op or node.op == "MapAndBatchDataset")


def _reached(nodes: Any, library: dict[str, Any]) -> Iterator[Any]:
    """Functions of a library that operations refer to, themselves or by others."""
    names = [name for node in nodes for name in _referred(node)]
    seen: set[str] = set()
    while names:
        name = names.pop(0)
        if name in seen or name not in library:
            continue
        seen.add(name)
        yield library[name]
        names.extend(n for node in library[name].node_def for n in _referred(node))


def _referred(node: Any) -> list[str]:
    found = []
    for name in sorted(node.attr):
        value = node.attr[name]
        if value.HasField("func"):
            found.append(value.func.name)
        found.extend(each.name for each in value.list.func)
    return found


def _seeded(nodes: Any, *, inside: bool) -> Iterator[Seeded]:
    by_name = {node.name: node for node in nodes}
    for node in nodes:
        definition = op_def_registry.get(node.op)
        if definition is None:
            continue
        if "seed" in node.attr and "seed2" in node.attr:
            places = [_attribute(node, name) for name in ("seed", "seed2")]
            if definition.is_stateful:
                yield Seeded(node, places, inside=inside)
            continue
        names = [argument.name for argument in definition.input_arg]
        if not {"seed", "seed2"} <= set(names) or "Dataset" not in node.op:
            continue
        inputs = [node.input[names.index(name)] for name in ("seed", "seed2")]
        chosen = by_name.get(inputs[1].partition(":")[0])
        is_choice = chosen is not None and chosen.op == "SelectV2"
        consts = [_const(name, by_name) for name in inputs]
        if None in consts:
            continue
        found = Seeded(node, [_value(c) for c in consts], inside=inside)
        if is_choice and found.unseeded:
            found.seeds = [0, 2**31 - 1]
        yield found


def input_of(node: Any, name: str) -> str:
    """Name of the node that is the input called ``name``; empty if there is none."""
    definition = op_def_registry.get(node.op)
    found = [] if definition is None else list(definition.input_arg)
    names = [argument.name for argument in found]
    if name not in names:
        return ""
    index = names.index(name)
    if any(each.type_list_attr or each.number_attr for each in found[:index]):
        index -= len(names)  # inputs before it are a list
    inputs = [each for each in node.input if not each.startswith("^")]
    return str(inputs[index].partition(":")[0])


def _const(name: str, by_name: dict[str, Any]) -> Any:
    """The node of a constant input.

    Inside functions tf.data replaces seeds (0, 0) by a conditional in the graph, which
    is resolved here.
    """
    node = by_name.get(name.partition(":")[0])
    if node is None or node.op == "Const":
        return node
    if node.op != "SelectV2":
        return None
    chosen = _const(node.input[2], by_name)
    if chosen is not None:
        value = chosen.attr["value"].tensor
        node.Clear()
        node.name, node.op = name.partition(":")[0], "Const"
        node.attr["dtype"].type = value.dtype
        node.attr["value"].tensor.CopyFrom(value)
    return node if chosen is not None else None


def _attribute(node: Any, name: str) -> Any:
    def put(value: int) -> None:
        node.attr[name].i = value

    return (lambda: node.attr[name].i), put


def _value(node: Any) -> Any:
    def put(value: int) -> None:
        shape = tf.make_ndarray(node.attr["value"].tensor).shape
        tensor = tf.make_tensor_proto(np.full(shape, value, np.int64))
        node.attr["value"].tensor.CopyFrom(tensor)

    return (lambda: tf.make_ndarray(node.attr["value"].tensor)), put
