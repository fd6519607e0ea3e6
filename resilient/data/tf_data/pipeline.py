"""Returns the iterators of a tf.data pipeline to a position.

The state of an iterator is saved and restored: no data is drawn twice. State that
outlasts iterators is saved beside it: the seeds of all shuffles, in-memory caches, and
what ``Lasting`` covers. A shuffle without a seed gets one, drawn once per run, and a
resumed run gives all shuffles the seeds they had.

If an iterator's state cannot be saved (Python functions, stateful random operations),
its batches are replayed. Such functions may carry state from one epoch to the next that
we cannot see: the first batch shows whether an epoch begins as before.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from resilient.data.source import DataSource, SourceContext, skip
from resilient.data.tf_data import facts, iterator_state
from resilient.data.tf_data.graph import PipelineGraph, is_stateful
from resilient.data.tf_data.iterator_state import Lasting, SeedCount, UnknownFormat
from resilient.data.tf_data.variables import PipelineVariables, chain
from resilient.errors import WarnOnce
from resilient.serialization import JSON
from resilient.state import rng


class Pipeline(DataSource):
    """A dataset with positions.

    Attributes:
        dataset: The dataset to iterate instead: equal, except for seeds.
        replayed: Whether the state of its iterators cannot be saved.
        remembers: Whether its functions may carry state that we cannot see.
        seeds: The type and the two seeds of each operation that has seeds.
    """

    name = "a tf.data.Dataset"

    def __init__(self, dataset: Any, settings: SourceContext) -> None:
        self.settings = settings
        self._given = dataset  # keeps its generators and caches alive
        self.dataset = dataset
        self.replayed = settings.options.replay
        self.remembers = False
        self._caches: list[Any] = []
        self.seeds: list[Any] = []
        self._inexact: list[str] = []  # draws that no resumed run repeats
        self._timed: list[str] = []  # draws that no run repeats
        self._iterator: Any = None  # the newest
        self._begun: JSON = {}  # the state when it was created
        self._last: JSON = {}  # how the newest iterator that yielded a batch began
        self._unchecked = False
        self._say = WarnOnce()
        self._lasting = Lasting(PipelineVariables(dataset))
        # Of other data the fingerprint says what differs.
        seeds = settings.saved.source.get("seeds", []) if settings.saved else []
        graph = facts.graph_of(dataset)
        self._known = graph is not None
        self.facts = facts.fingerprint(dataset, graph)
        self._constants = facts.checksums_of_constants(dataset, graph)
        self._compared = False
        try:
            if graph is not None:
                self._study(graph, seeds)
            else:
                self._glance(dataset, seeds)
        except UnknownFormat:
            self._inexact.append("the shuffles: this TensorFlow does not tell a state")

    def _study(self, graph: PipelineGraph, saved: list[Any]) -> None:
        self.remembers = bool(graph.state_outside())
        if self.remembers or facts.is_not_saved(graph.all_operations()):
            self.replayed = True
        self._lasting.find_generators(graph.nodes_inside(), self.settings)
        if not graph.nodes("Snapshot"):  # or saving a cache would save those, too
            self._caches = facts.caches_in_memory(graph)
        self._timed = graph.draws_in_parallel()
        changed = self._choose_seeds(graph, saved)
        hidden = not self.remembers and graph.hide_generators()
        if changed or hidden:
            self._lasting.counts = iterator_state.with_own_generators(graph)
            self.dataset = graph.dataset()
        else:
            self._lasting.counts = iterator_state.count_draws(graph)

    def _glance(self, dataset: Any, saved: list[Any]) -> None:
        """Without its graph: use what the Python objects show, with unchanged seeds."""
        nodes = facts.nodes_in_functions(dataset)
        if any(is_stateful(node.op) for node in nodes):
            self.remembers = self.replayed = True
        names = (type(each).__name__ for each in chain(dataset))
        if facts.is_not_saved([*names, *(node.op for node in nodes)]):
            self.replayed = True
        self._lasting.find_generators(nodes, self.settings)
        found = facts.shuffles(dataset)
        self.seeds = [[int(each._seed), int(each._seed2)] for each in found]
        for number, seeds in enumerate(self.seeds, 1):
            if not any(seeds) or (saved and self.seeds != saved):
                self._inexact.append(f"shuffle {number} of {len(found)}")
        name = "_reshuffle_each_iteration"
        again = [each for each in found if getattr(each, name, False)]
        self._lasting.counts = list(map(SeedCount, again))

    def _choose_seeds(self, graph: PipelineGraph, saved: list[Any]) -> bool:
        """Give operations the seeds they had, or new ones if they have none.

        Returns:
            Whether any seed changed.
        """
        before = [[each.op, each.seeds] for each in graph.seeded]
        if [each[0] for each in saved] == [each[0] for each in before]:
            for each, (_, seeds) in zip(graph.seeded, saved, strict=True):
                each.seeds = seeds
        for each in graph.seeded:
            if not each.unseeded:
                continue
            if each.inside:
                self._inexact.append(f"{each.op} without a seed inside a function")
            else:
                each.seeds = [1 + self.settings.share.seed(31) for _ in range(2)]
        self.seeds = [[each.op, each.seeds] for each in graph.seeded]
        return self.seeds != before

    def begin(self, iterable: Any = None) -> Any:
        """A new iterator of the dataset, or of the distributed one."""
        self._begun = {
            "lasting": self._lasting.get(),
            "random": rng.capture(self.settings.backend),
        }
        self._iterator = self._iter(iterable)
        return self._iterator

    def began(self, first: str) -> None:
        """The newest iterator yielded its first batch, with this checksum."""
        if self.remembers:
            self._last = {"begun": self._begun, "first": first}

    def check(self, first_of: Callable[[Any], Any], iterable: Any = None) -> None:
        """Begin the previous epoch twice more; both must begin as it did.

        In a new process, functions first remember no epoch, and then one. This is done
        after a resume, when the next epoch begins.

        Args:
            first_of: Draws the first batch of an iterator.
            iterable: The distributed dataset, if there is one.
        """
        if not self._unchecked:
            return
        self._unchecked = False
        lasting = self._lasting.get()
        with rng.kept_random_state(self.settings.backend):
            for _ in range(2):
                self._set_to(self._last["begun"])
                # Not kept: it may prefetch for as long as it exists.
                batch = first_of(self._iter(iterable))
                self.verify(batch, 1, self._last["first"])
        self._lasting.set(lasting)

    def _set_to(self, begun: JSON) -> None:
        self._lasting.set(begun["lasting"])
        rng.restore(self.settings.backend, begun["random"])

    def _iter(self, iterable: Any) -> Any:
        return iter(self.dataset if iterable is None else iterable)

    def fingerprint(self) -> JSON:
        return self.facts

    def position(self, *, live: bool) -> JSON:
        live = live and self._iterator is not None
        self._warn_of_draws()
        found: JSON = {
            "seeds": self.seeds,
            "constants": self._constants,
            "lasting": self._lasting.get(),
        }
        if live:
            # A restored iterator stays that way, whatever the option says now.
            replayed = self.replayed and self._begun
            state = None if replayed else self._state()
            if state is not None:
                found["state"] = state
            if self._begun:  # a different number of processes replays from there
                found["begun"] = self._begun
        if not live or self._last.get("begun") is self._begun:
            found |= self._last
        if self._caches:  # an iterator's state omits caches that it is not reading
            found["caches"] = [iterator_state.save(iter(c)) for c in self._caches]
            self._lasting.set(found["lasting"])  # iterating caches may draw
        return found

    def _state(self) -> np.ndarray | None:
        try:
            return iterator_state.save(self._iterator, known=self._known)
        except tf.errors.OpError:  # some operations fail only now
            self.replayed = True
            return None

    def _warn_of_draws(self) -> None:
        self._say(
            f"{self.argument} draws random numbers that a resumed run cannot draw "
            "again. Give each of these a seed",
            self._inexact,
        )
        self._say(
            f"{self.argument} draws random numbers in parallel calls: which element "
            "gets which is up to timing, so training does not repeat, and most resumes "
            "are refused. Seeds do not help: leave out num_parallel_calls, or move "
            "random layers into the model",
            self._timed,
        )

    def resume(self, position: JSON) -> None:
        if "constants" in position and not self._compared:
            self._compared = True
            facts.check_constants(position["constants"], self._constants, self)
        caches = position.get("caches", [])
        with self.restoring():
            for cache, state in zip(self._caches, caches, strict=True):
                iterator_state.restore(iter(cache), state)
        self._lasting.set(position["lasting"])
        if "first" in position:
            self._last = {name: position[name] for name in ("begun", "first")}
            self._unchecked = True

    def seek(self, position: JSON, given: int, iterable: Any = None) -> tuple[Any, Any]:
        self.resume(position)
        self._unchecked = False
        if "state" in position:
            self._begun = position.get("begun", {})
            self._iterator = self._iter(iterable)
            with self.restoring():
                iterator_state.restore(self._iterator, position["state"])
            self._lasting.set(position["lasting"])
            return self._iterator, None
        self._begun = position["begun"]
        self._set_to(self._begun)
        self._iterator = self._iter(iterable)
        last = skip(self._iterator, given, self)
        now = rng.capture(self.settings.backend)
        drawn = rng.drawn_from(self._begun["random"], now)
        self.settings.drawn_ahead.update(drawn)
        return self._iterator, last
