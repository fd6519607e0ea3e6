"""Finds random operations whose state no checkpoint can hold.

``tf.random.*`` inside a traced function keeps its state in the kernel, out of reach:
after a resume it starts over. Keras's own layers and ``keras.random`` draw statelessly
from seed generators, which are variables. The other backends have no such operations:
JAX's are stateless, torch's draw from the global generator.
"""

from typing import Any

import keras

from resilient import keras_internals

_STATEFUL = frozenset(
    {
        "Multinomial",
        "ParameterizedTruncatedNormal",
        "RandomGamma",
        "RandomPoisson",
        "RandomPoissonV2",
        "RandomShuffle",
        "RandomStandardNormal",
        "RandomUniform",
        "RandomUniformInt",
        "TruncatedNormal",
    }
)


def stateful_random_operations(model: keras.Model) -> list[str]:
    """Names of such operations in the model's traced train function, sorted."""
    if keras_internals.BACKEND != "tensorflow":
        return []
    found: set[str] = set()
    for function in keras_internals.traced_functions(model.train_function):
        graph: Any = function.graph.as_graph_def()
        found.update(f"{n.name} ({n.op})" for n in graph.node if n.op in _STATEFUL)
        for nested in graph.library.function:
            found.update(
                f"{n.name} ({n.op})" for n in nested.node_def if n.op in _STATEFUL
            )
    return sorted(found)
