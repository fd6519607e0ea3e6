"""The position of a tf.data pipeline: its seeds, and state that outlasts iterators.

The latter is in no iterator's state. It consists of the number of draws of each
shuffle, variables that functions assign, and random generators that Python functions
draw from.
"""

import inspect
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, NotRequired, TypedDict

from msgspec import Meta
from tensorflow.python.ops import script_ops

from resilient.data.source import SourceContext
from resilient.data.tf_data.iterator_state import SeedCount
from resilient.data.tf_data.variables import PipelineVariables
from resilient.objects.attributes import generators, unclaimed
from resilient.serialization import JSON, rng
from resilient.serialization.schema import Count, MalformedError, well_formed

_Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_Seeds = Annotated[list[_Seed], Meta(min_length=2, max_length=2)]


class LastingState(TypedDict):
    """Numbers of draws, values, and states by name."""

    counts: list[Count]
    variables: list[Any]
    generators: JSON


class Begun(TypedDict):
    """The state when an iterator was created."""

    lasting: LastingState
    random: JSON


class PipelinePosition(TypedDict):
    """Seeds: an operation and its two seeds, or just the two without a graph."""

    seeds: list[Annotated[list[str | _Seed | _Seeds], Meta(min_length=2, max_length=2)]]
    lasting: LastingState
    constants: NotRequired[dict[str, str]]
    state: NotRequired[Any]
    begun: NotRequired[Begun]
    first: NotRequired[str]
    caches: NotRequired[list[Any]]


def saved_seeds(settings: SourceContext) -> list[Any]:
    """The seeds in the position to resume from; none if that is for other data.

    Raises:
        MalformedError: It has seeds, but is not the position of a pipeline.
    """
    source = settings.saved.source if settings.saved else {}
    if "seeds" not in source:  # the fingerprint says what differs
        return []
    what = "the position of the data"
    seeds: list[Any] = well_formed(PipelinePosition, source, what)["seeds"]
    return seeds


def operations(seeds: list[Any]) -> list[Any]:
    """The operations of seeds; None if there are only the two."""
    return [op if isinstance(two, list) else None for op, two in seeds]


def require_begun(position: JSON) -> None:
    """Raise MalformedError if a position does not say how its iterator began."""
    if "begun" not in position:
        raise MalformedError("the position of the data: not how its iterator began")


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
