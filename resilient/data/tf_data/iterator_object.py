"""Saves a tf.data iterator that a loop draws from itself.

It saves the iterator's state and the number of draws of each shuffle, which no
iterator's state contains. Pipelines that need more are refused: pass such a dataset to
``loop``.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from resilient.data.tf_data import facts, iterator_state
from resilient.data.tf_data.graph import PipelineGraph
from resilient.errors import DataNotResumableError
from resilient.objects.adapters.base import Kind, require_backend
from resilient.serialization import JSON


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

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        graph = PipelineGraph(value._dataset)
        self._seeds = [[each.op, list(each.seeds)] for each in graph.seeded]
        unseeded = [each.op for each in graph.seeded if each.unseeded]
        if unseeded:
            raise _refused(f"{unseeded[0]} without a seed")
        if graph.state_outside() or facts.is_not_saved(graph.all_operations()):
            raise _refused("operations whose state cannot be saved")
        self._counts = iterator_state.count_draws(graph)
        self._constants = facts.checksums_of_constants(value._dataset, graph)

    def facts(self) -> JSON:
        found = {f" constants of {op}": each for op, each in self._constants.items()}
        found.pop(f" constants of {facts.FILES}", None)
        return {" seeds": self._seeds, **found}

    def state(self) -> Any:
        try:
            state = iterator_state.save(self.value, known=False)
        except tf.errors.OpError as error:
            raise _refused(str(error).partition("\n")[0]) from error
        counts = [count.get() for count in self._counts]
        return {"state": np.array(state), "counts": counts}

    def load(self, state: Any, tensors: Mapping[str, Any]) -> None:
        try:
            iterator_state.restore(self.value, state["state"])
        except tf.errors.OpError as error:
            raise DataNotResumableError(
                "An iterator cannot be set to the state in the checkpoint: its "
                "pipeline is different.",
                received=str(error).partition("\n")[0],
                hint="Use the same data as before, or use another checkpoint_dir.",
            ) from error
        for count, value in zip(self._counts, state["counts"], strict=True):
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
