"""Saves a tf.data iterator that a loop draws from itself.

It saves the iterator's state and the number of draws of each shuffle, which no
iterator's state contains. Pipelines that need more are refused: pass such a dataset to
``loop``.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, NotRequired, TypedDict

import numpy as np
import tensorflow as tf

from resilient.data.tf_data import constants, facts, iterator_state, shuffles
from resilient.data.tf_data.graph import PipelineGraph
from resilient.errors import DataNotResumableError
from resilient.objects.adapters.base import Kind, require_backend
from resilient.serialization import Encoded
from resilient.serialization.decoding import decode
from resilient.serialization.json_values import encode
from resilient.serialization.schema import Count, MalformedError


class _Iterator(TypedDict):
    constants: NotRequired[dict[str, str]]
    state: Any
    counts: list[Count]
    seeds: list[Any]


def kind_of(name: str, value: Any) -> Kind | None:
    """The kind of an iterator of tf.data; None for anything else."""
    if not isinstance(value, tf.data.Iterator):
        return None
    require_backend("tensorflow", name, value)
    return IteratorKind(value)


class IteratorKind(Kind):
    """A newly created iterator.

    Raises:
        DataNotResumableError: Its pipeline cannot be resumed exactly in this way.
    """

    kind: ClassVar[str] = "tf.data iterator"
    schema: ClassVar[Any] = _Iterator

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        graph = PipelineGraph(value._dataset)
        self._seeds = [[each.op, list(each.seeds)] for each in graph.seeded]
        unseeded = [each.op for each in graph.seeded if each.unseeded]
        if unseeded:
            raise _refused(f"{unseeded[0]} without a seed")
        if graph.state_outside() or facts.is_not_saved(graph.all_operations()):
            raise _refused("operations whose state cannot be saved")
        self._counts = shuffles.count_draws(graph)
        self._constants = constants.checksums(value._dataset, graph)

    def capture(
        self, arrays: dict[str, Any], name: str, known: Mapping[int, str]
    ) -> Encoded:
        try:
            state = iterator_state.save(self.value, known=False)
        except tf.errors.OpError as error:
            raise _refused(str(error).partition("\n")[0]) from error
        return {
            "state": encode(np.array(state), arrays, name),
            "counts": [count.get() for count in self._counts],
            "seeds": self._seeds,
            "constants": self._constants,
        }

    def differences(self, name: str, saved: Encoded) -> list[str]:
        before = saved.get("constants", self._constants)
        changed = set(constants.differences(before, self._constants))
        found = [
            f"{name}: its pipeline was given other values: constants of {op}"
            for op in sorted(changed - {constants.FILES})
        ]
        if (theirs := saved["seeds"]) != (ours := self._seeds):
            both = f"the checkpoint has the seeds {theirs}, this run has {ours}"
            found.append(f"{name}: {both}")
        return found

    def restore(self, saved: Encoded, arrays: Mapping[str, Any]) -> None:
        counts = saved["counts"]
        if len(counts) != len(self._counts):
            raise MalformedError(f"{len(counts)} draws of {len(self._counts)} shuffles")
        try:
            iterator_state.restore(self.value, decode(saved["state"], arrays))
        except tf.errors.OpError as error:
            raise DataNotResumableError(
                "An iterator cannot be set to the state in the checkpoint: its "
                "pipeline is different.",
                received=str(error).partition("\n")[0],
                hint="Use the same data as before, or use another checkpoint_dir.",
            ) from error
        for count, value in zip(self._counts, counts, strict=True):
            count.set(value)


def _refused(why: str) -> DataNotResumableError:
    return DataNotResumableError(
        "An iterator over this pipeline cannot be resumed exactly.",
        received=why,
        hint=(
            "Pass the dataset itself to run.loop, which needs no seeds and redraws "
            "what cannot be saved; or give every shuffle a seed."
        ),
    )
