"""Saves pipeline state that outlasts iterators and is in no iterator's state.

It consists of the number of draws of each shuffle, variables that functions assign, and
random generators that Python functions draw from.
"""

import inspect
from collections.abc import Iterable, Iterator
from typing import Any, TypedDict

from tensorflow.python.ops import script_ops

from resilient.data.source import SourceContext
from resilient.data.tf_data.seed_counts import SeedCount
from resilient.data.tf_data.variables import PipelineVariables
from resilient.objects.attributes import generators, unclaimed
from resilient.serialization import JSON, rng
from resilient.serialization.schema import Count, MalformedError


class LastingState(TypedDict):
    """Numbers of draws, values, and states by name."""

    counts: list[Count]
    variables: list[Any]
    generators: JSON


class Lasting:
    """Gets and sets all of that."""

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
        if self.counts and len(state["counts"]) != len(self.counts):
            raise MalformedError(f"the draws of {len(state['counts'])} shuffles")
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
