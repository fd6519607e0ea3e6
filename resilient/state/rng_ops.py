"""Finds random operations whose state no checkpoint can hold.

``tf.random.*`` inside a traced function keeps its state in the kernel, out of reach: a
resume starts it over. Keras's layers and ``keras.random`` draw statelessly from seed
generators, which are variables. Other backends have no such operations: JAX's are
stateless, and torch's draw from the global generator.
"""

from typing import Any

import keras

from resilient import keras_internals
from resilient.keras_internals import traces

# Functions of tf.data, see data/tf_data, and single operations, whose state is saved.
_OTHERS = ("__inference_Dataset_", "__wrapped__")


def stateful_random_operations(model: keras.Model) -> list[str]:
    """Names of such operations in the model's traced train function, sorted."""
    if keras_internals.BACKEND != "tensorflow":
        return []
    found: set[str] = set()
    for function in traces.traced_functions(model.train_function):
        graph: Any = function.graph.as_graph_def()
        found.update(_stateful(graph.node))
        for nested in graph.library.function:
            found.update(_stateful(nested.node_def))
    return sorted(found)


def operations_of_new_functions(known: set[str]) -> list[str]:
    """Names of such operations in all functions traced in this process.

    Args:
        known: Functions to skip; inspected ones are added.
    """
    if keras_internals.BACKEND != "tensorflow":
        return []
    from tensorflow.python.eager import context

    functions, found = context.context(), set[str]()
    for name in set(functions.list_function_names()) - known:
        known.add(name)
        text = name.decode() if isinstance(name, bytes) else name
        if not text.startswith(_OTHERS):
            found |= _stateful(functions.get_function_def(name).node_def)
    return sorted(found)


def _stateful(nodes: Any) -> set[str]:
    # Seeds of stateless operations are inputs. cuDNN's draw for a dropout, which Keras
    # does itself.
    return {
        f"{n.name} ({n.op})"
        for n in nodes
        if "seed2" in n.attr and not n.op.startswith("CudnnRNN")
    }
