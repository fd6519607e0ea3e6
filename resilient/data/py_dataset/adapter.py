"""keras.utils.PyDataset: saves the order of the epoch and changed attributes.

Returning to a position takes constant time: the order is saved, and only the last batch
is made again, if that has no side effects, to check that the data is the same.

``replay_data=True`` makes no difference: no iterator state is saved anyway.
"""

import itertools
import logging
from collections.abc import Generator, Iterator
from typing import Any

from resilient import keras_internals
from resilient.data.py_dataset.order import Order
from resilient.data.py_dataset.workers import Workers
from resilient.data.source import DataSource, SourceContext
from resilient.data.tracked import TrackedAdapter, TrackedIterable, lazily
from resilient.errors import WarnOnce
from resilient.objects.attributes import Attributes, generators, unclaimed
from resilient.serialization import JSON
from resilient.serialization.rng import set_states, states
from resilient.state import rng

logger = logging.getLogger(__name__)


class PyDatasetData(TrackedAdapter, keras_internals.PyDatasetAdapter):  # type: ignore[misc]
    """Keras's adapter of a PyDataset, with a position."""

    def __init__(
        self,
        x: Any,
        class_weight: Any = None,
        shuffle: bool = False,
        *,
        settings: SourceContext,
    ) -> None:
        self.enqueuer: Any = None  # Keras's, temporarily
        super().__init__(x, class_weight=class_weight, shuffle=shuffle)
        self.source = PyDatasetSource(self, settings)
        self.tracked = TrackedIterable(self.source)
        if self.enqueuer is not None:
            self.enqueuer = ()  # there is one, but Keras neither starts nor stops it

    def on_epoch_begin(self) -> None:
        super().on_epoch_begin()
        self.source.in_epoch = True

    def on_epoch_end(self) -> None:
        self.source.in_epoch = False
        with self.tracked.lock:
            self.source.close()
        super().on_epoch_end()

    def _get_iterator(self) -> Iterator[Any]:
        return lazily(self.tracked)

    def as_given(self) -> Iterator[Any]:
        return self._get_iterator()


class PyDatasetSource(DataSource):
    """A PyDataset that Keras iterates.

    Args:
        adapter: Keras's adapter, with Keras's ``enqueuer`` where there are workers.
    """

    def __init__(self, adapter: Any, settings: SourceContext) -> None:
        self._adapter, self._dataset = adapter, adapter.py_dataset
        as_it_is = settings.as_given
        self._standardized = (lambda b: b) if as_it_is else adapter._standardize_batch
        self._shuffle = bool(adapter.shuffle)
        self.settings = settings
        self.name = f"a PyDataset, {type(self._dataset).__qualname__}"
        queue = self._dataset.max_queue_size if adapter.enqueuer is not None else None
        self.order = Order(adapter, counts_on=queue is not None)
        self._workers = (
            Workers(self._dataset, queue, self._watched) if queue is not None else None
        )
        self._reached = found = generators({"self": self._dataset})
        self._generators = unclaimed(found, settings.claimed)
        self._attributes = self._from_now_on()
        self.in_epoch = False
        self._made: Generator[tuple[int, Any]] | None = None  # batches from the workers
        self._last: Any = None  # its index
        self._as_made: list[int] = []  # its contents when the last batch was made
        self._say = WarnOnce()
        if self._workers is not None:
            self._note_other_order()

    def _note_other_order(self) -> None:
        """Say, once per run, if ``model.fit`` itself would train different batches."""
        how = self.settings
        by_keras = not how.as_given and how.argument == "x"
        if by_keras and how.saved is None and keras_internals.BACKEND != "tensorflow":
            logger.warning(
                "Several workers make the batches of %s. With them, model.fit may "
                "train one batch twice and skip another; here each batch is trained "
                "once per epoch, so the result may differ from that of model.fit. A "
                "resume is exact. With workers=0, both train the same batches.",
                self.name,
            )

    def begin(self) -> Iterator[Any]:
        self.close()
        self.order.begin()
        return self._batches(0)

    def close(self) -> None:
        """End the workers, and drop prefetched batches."""
        made, self._made = self._made, None
        if made is not None:
            made.close()

    def position(self, *, live: bool) -> JSON:
        attributes = self._attributes.capture()
        same = self.in_epoch and self._held() == self._as_made
        self._say(
            "these attributes of the data changed and cannot be saved, so a resume "
            "resets them (give the dataset state_dict() and load_state_dict() to "
            "keep them)",
            self._attributes.uncaptured(),
        )
        return {
            "order": self.order.position(),
            "attributes": attributes,
            "random": states(self._generators),
            "in_epoch": self.in_epoch,
            # If the dataset has not changed since it was made.
            "last": self._last if live and same else None,
        }

    def resume(self, position: JSON) -> None:
        self._restore(position)
        self.order.resume(position["order"])

    def seek(self, position: JSON, given: int) -> tuple[Iterator[Any], Any]:
        self._last, again = position["last"], None
        if given and self._last is not None:
            with self.restoring():
                again = self._made_again(self._last)
            self._as_made = self._held()
            if again is None:
                self._restore(position)
        return self._batches(given), again

    def _restore(self, position: JSON) -> None:
        self.require_states(self._generators, position["random"])
        self._attributes.restore(position["attributes"])
        set_states(self._generators, position["random"])

    def fingerprint(self) -> JSON:
        cls = type(self._dataset)
        return {
            "kind": "py_dataset",
            "class": cls.__qualname__,
            "batches": self._dataset.num_batches,
            "shuffle": self._shuffle,
        }

    def _batches(self, given: int) -> Iterator[Any]:
        """Yield what Keras's generator would yield after ``given`` batches."""
        length = self._adapter.num_batches  # of this process's share
        while length is None or given < length:
            index, batch = self._next(None if length is None else length - given)
            self.order.take()
            if batch is None and self._workers is not None:
                continue  # Keras's enqueuer leaves it out
            self._last = index
            given += 1
            yield self._standardized(batch)
        self.close()

    def _next(self, left: int | None) -> tuple[int, Any]:
        if self._workers is None:
            index = next(self.order.upcoming())
            batch = self._dataset[index]
            self._as_made = self._held()
            return index, batch
        if self._made is None:
            self._as_made = self._held()
            indices = itertools.islice(self.order.upcoming(), left)
            self._made = self._workers.batches(indices)
        made = next(self._made)
        self._say(
            "with several workers, timing decides which of them draws or changes "
            "what, in Keras too, so neither a second run nor a resume repeats it (draw "
            "from numpy.random.default_rng((seed, epoch, index)), or use workers=0)",
            self._workers.findings,
        )
        return made

    def _from_now_on(self) -> Attributes:
        return Attributes({"self": self._dataset}, self._reached.values())

    def _held(self) -> list[int]:
        """The identities of its attributes, cheap enough for every batch."""
        return [id(value) for value in vars(self._dataset).values()]

    def _made_again(self, index: int) -> Any:
        """The batch; None if making it draws random numbers or changes anything."""
        reached = states(self._reached)
        batch, found = self._watched(index)
        if found:
            set_states(self._reached, reached)
            return None
        return self._standardized(batch)

    def _watched(self, index: int) -> tuple[Any, list[str]]:
        """A batch, and what making it draws from, or changes."""
        attributes, before = self._from_now_on(), self._random_states()
        batch = self._dataset[index]
        after = self._random_states()
        drawn = [part for part in before if before[part] != after[part]]
        name = type(self._dataset).__qualname__.rpartition("<locals>.")[2]
        return batch, [
            f"{name}.__getitem__ draws from, or changes, {part}"
            for part in (*drawn, *attributes.changed())
        ]

    def _random_states(self) -> dict[str, Any]:
        found = rng.capture(self.settings.backend)
        shared = {**found.pop("backends"), **found}
        named = {f"{name}'s global generator": each for name, each in shared.items()}
        return named | states(self._reached)
