"""A tf.data pipeline whose iterators get back to where they were.

The state of an iterator is saved, and set again: no data is drawn twice. What outlasts
iterators is kept beside it: the seeds of all shuffles, with how often each was drawn
from, caches in memory, and variables that the pipeline assigns. A shuffle without a
seed is given one, drawn once for a run, and a resumed run gives all of them the seeds
they had.

Where an iterator has no state that can be saved (Python functions, stateful random
operations), the batches that it gave are drawn again.
"""

import secrets
import warnings
from typing import Any

import numpy as np
import tensorflow as tf

from resilient import random_state
from resilient.data import JSON, replay
from resilient.data.source import Settings
from resilient.data.tf_data import facts, iterator_state, shuffles
from resilient.data.tf_data.graph import PipelineGraph
from resilient.data.tf_data.seed_counts import SeedCount, UnknownFormat
from resilient.data.tf_data.variables import Variables
from resilient.errors import DataNotResumableError, describe, warn_not_exact

# Of iterator state in one checkpoint: beyond this there is a warning.
LARGE_STATE = 64 * 2**20
# Of data that a pipeline holds in memory: beyond this its graph, a copy of it all, is
# not made.
LARGE_GRAPH = 2**29

# TensorFlow hangs when it saves an iterator of one that was restored with an input that
# had come to its end.
_HANGS = "DirectedInterleaveDataset"


class LargeStateWarning(UserWarning):
    """Checkpoints are large because of the data's state."""


class Pipeline:
    """A dataset, and how its iterators get back.

    Args:
        dataset: What Keras is to iterate.
        settings: Of this fit.
        saved: The position that the run is resumed from, if it is.

    Attributes:
        dataset: To be iterated in its place: equal, but for seeds.
        replayed: Whether its iterators have no state that can be saved.
        seeds: Of each operation that has some: its type, and the two.
    """

    name = "a tf.data.Dataset"

    def __init__(self, dataset: Any, settings: Settings, saved: JSON | None) -> None:
        self._settings = settings
        self._given = dataset  # its generators and caches live as long as it does
        self.dataset = dataset
        self.replayed = settings.mode == "replay"
        self._counts: list[SeedCount] = []
        self._caches: list[Any] = []
        self.seeds: list[Any] = []
        self._inexact: list[str] = []
        self._begun: JSON = {}
        self._warned = False
        self._variables = Variables(dataset)
        self.fingerprint = facts.facts(dataset)
        if specs := self._variables.specs():
            self.fingerprint |= {"variables": specs}
        seeds = (saved or {}).get("source", {}).get("seeds", [])
        self._known = facts.in_memory(dataset) <= LARGE_GRAPH
        try:
            if self._known:
                self._study(PipelineGraph(dataset), seeds)
            else:
                self._glance(dataset, seeds)
        except UnknownFormat:
            self._inexact.append("the shuffles: this TensorFlow does not tell a state")

    def _study(self, graph: PipelineGraph, saved: list[Any]) -> None:
        outside = graph.state_outside()
        if outside or any(_HANGS in op for op in graph.all_operations()):
            self.replayed = True
        self.fingerprint |= {"operations": graph.operations()}
        self._caches = facts.caches_in_memory(graph)
        changed = self._choose_seeds(graph, saved)
        hidden = not outside and graph.hide_generators()
        if changed or hidden:
            self._counts = shuffles.with_own_generators(graph)
            self.dataset = graph.dataset()
        else:
            self._counts = shuffles.count_draws(graph)

    def _glance(self, dataset: Any, saved: list[Any]) -> None:
        """Without its graph: what the Python objects tell, and seeds as they are."""
        found = facts.shuffles(dataset)
        self.seeds = [each.seeds for each in found]
        for number, each in enumerate(found, 1):
            if not any(each.seeds) or (saved and self.seeds != saved):
                self._inexact.append(f"shuffle {number} of {len(found)}")
        self._counts = [SeedCount(each.dataset) for each in found if each.reshuffles]

    def _choose_seeds(self, graph: PipelineGraph, saved: list[Any]) -> bool:
        """Give operations the seeds they had, or one where they have none.

        Returns:
            Whether any is another one than before.
        """
        before = [[each.op, each.seeds] for each in graph.seeded]
        if self._variables.specs():  # a changed graph would get copies of them
            self.seeds = before
            self._inexact += [each.op for each in graph.seeded if each.unseeded]
            if saved and saved != before:
                self._inexact.append("a shuffle whose seed was another one")
            return False
        if [op for op, _ in saved] == [op for op, _ in before]:
            for each, (_, seeds) in zip(graph.seeded, saved, strict=True):
                each.seeds = seeds
        for each in graph.seeded:
            if not each.unseeded:
                continue
            if each.inside:
                self._inexact.append(f"{each.op} without a seed inside a function")
            else:
                each.seeds = [secrets.randbits(31) + 1, secrets.randbits(31) + 1]
        self.seeds = [[each.op, each.seeds] for each in graph.seeded]
        return self.seeds != before

    def begin(self, iterable: Any = None) -> Any:
        """A new iterator of the dataset, or of what it was distributed to."""
        self._begun = {
            "counts": [count.get() for count in self._counts],
            "variables": self._variables.get(),
            "random": random_state.capture(self._settings.backend),
        }
        return self._iterator(iterable)

    def _iterator(self, iterable: Any) -> Any:
        iterator = iter(self.dataset if iterable is None else iterable)
        if not hasattr(iterator, "_iterator_resource"):
            self.replayed = True  # it was distributed
        return iterator

    def position(self, iterator: Any) -> JSON:
        """Where the pipeline is.

        Args:
            iterator: The one that goes on; None between two.
        """
        self._warn_once()
        found: JSON = {
            "seeds": self.seeds,
            "counts": [count.get() for count in self._counts],
        }
        if iterator is None:
            found["variables"] = self._variables.get()
        if iterator is not None:
            state = None if self.replayed else self._state_of(iterator)
            found |= {"begun": self._begun} if state is None else {"state": state}
        if self._caches:  # an iterator's state forgets those that it does not read now
            found["caches"] = [iterator_state.save(iter(c)) for c in self._caches]
            self._set_counts(found["counts"])  # to look into caches may draw
        return found

    def _state_of(self, iterator: Any) -> np.ndarray | None:
        try:
            state = iterator_state.save(iterator, known=self._known)
        except tf.errors.OpError:  # some operations tell only now
            self.replayed = True
            return None
        if state.nbytes > LARGE_STATE and not self._warned:
            self._warned = True
            warnings.warn(
                f"The state of `{self._settings.argument}` ({self.name}) takes "
                f"{state.nbytes / 2**20:,.0f} MB in each checkpoint: the buffers of "
                'its shuffles, and its caches. With data="replay" checkpoints stay '
                "small, and a resumed run draws the batches of the epoch again.",
                LargeStateWarning,
                stacklevel=2,
            )
        return state

    def _warn_once(self) -> None:
        names, self._inexact = self._inexact, []
        if names:
            warn_not_exact(
                f"`{self._settings.argument}` ({self.name}) draws random numbers that "
                "a resumed run cannot draw again. Give each of these a seed",
                names,
            )

    def resume(self, position: JSON) -> None:
        """Set what outlasts iterators."""
        for cache, state in zip(self._caches, position.get("caches", []), strict=False):
            iterator_state.restore(iter(cache), state)
        self._set_counts(position.get("counts", []))
        self._variables.set(position.get("variables", []))

    def _set_counts(self, counts: list[int]) -> None:
        for count, value in zip(self._counts, counts, strict=False):
            count.set(value)

    def seek(self, position: JSON, given: int, iterable: Any = None) -> tuple[Any, Any]:
        """An iterator that goes on after ``given`` batches, and the last one, if drawn.

        Global random state is not what it was: the caller sets it.
        """
        self.resume(position)
        if "state" in position:
            iterator = self._iterator(iterable)
            self._restore(iterator, position["state"])
            self._set_counts(position["counts"])
            return iterator, None
        self._begun = begun = position["begun"]
        self._set_counts(begun["counts"])
        self._variables.set(begun["variables"])
        random_state.restore(self._settings.backend, begun["random"])
        iterator = self._iterator(iterable)
        return iterator, replay.skip(iterator, given, self.name, self._settings)

    def _restore(self, iterator: Any, state: np.ndarray) -> None:
        try:
            iterator_state.restore(iterator, state)
        except (tf.errors.OpError, AttributeError) as error:
            raise DataNotResumableError(
                describe(
                    "The pipeline cannot be set to the state in the checkpoint: it is "
                    "another one, or files that it reads or writes are not there.",
                    f"`{self._settings.argument}` ({self.name}): {error}",
                    'Make the data what it was, or start anew with resume="never".',
                )
            ) from error


def position_ahead(dataset: Any, settings: Settings) -> JSON:
    """The position of a dataset that is not iterated yet: the seeds of its shuffles.

    They are drawn when the dataset is made, or by the first adapter: a run that is
    resumed before Keras made one needs those of the run's beginning.
    """
    return {"drawn": 0, "source": {"seeds": Pipeline(dataset, settings, None).seeds}}
