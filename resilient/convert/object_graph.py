"""Checks the graph of objects in a TensorFlow checkpoint before TensorFlow walks it.

TensorFlow calls each object by the whole path that leads to it, and logs the names of
those that it misses. What is deep takes memory by the square of the depth; a number
that leads nowhere, and a name with control characters, come up where nobody can catch
them.
"""

import re
from collections import deque
from collections.abc import Iterator
from typing import Any

_MOST = 8 << 20  # characters of all paths
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_BETWEEN = len("'s state '' for ")


def checked(raw: bytes) -> Any:
    """The graph, a ``TrackableObjectGraph``.

    Raises:
        ValueError: TensorFlow would not be safe with it.
    """
    from tensorflow.core.protobuf.trackable_object_graph_pb2 import (
        TrackableObjectGraph,
    )

    graph = TrackableObjectGraph.FromString(raw)
    if not graph.nodes:
        raise ValueError("it has no objects")
    if any(map(_CONTROL.search, _texts(graph))):
        raise ValueError("names of objects have control characters")
    if any(node.registered_saver.name for node in graph.nodes):
        raise ValueError("an object has a saver of its own")
    total = 0
    for length in _lengths(graph.nodes):
        total += length
        if total > _MOST:
            raise ValueError("the paths of its objects are too long")
    return graph


def _texts(graph: Any) -> Iterator[str]:
    for node in graph.nodes:
        yield from (child.local_name for child in node.children)
        yield from (slot.slot_name for slot in node.slot_variables)
        for attribute in node.attributes:
            yield from (attribute.name, attribute.checkpoint_key)


def _lengths(nodes: Any) -> Iterator[int]:
    """Of the path of each object, and of each slot variable's: as TensorFlow's."""
    found, to_visit = {0: len("(root)")}, deque([0])
    while to_visit:
        node = to_visit.popleft()
        yield found[node]
        for child in nodes[node].children:
            _require_node(child.node_id, nodes)
            if child.node_id not in found:
                found[child.node_id] = found[node] + 1 + len(child.local_name)
                to_visit.append(child.node_id)
    for number, node in enumerate(nodes):
        for slot in node.slot_variables:
            of = slot.original_variable_node_id
            _require_node(slot.slot_variable_node_id, nodes)
            if number not in found or of not in found:
                raise ValueError("a slot is of an object that nothing leads to")
            length = found[number] + found[of] + len(slot.slot_name) + _BETWEEN
            found[slot.slot_variable_node_id] = length
            yield length


def _require_node(number: int, nodes: Any) -> None:
    if not 0 <= number < len(nodes):
        raise ValueError("an object is one that it does not have")
