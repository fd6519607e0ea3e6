"""A DataLoader without workers: redraws its order, skipping only indices.

Returning to a position loads no samples except those of the last batch, to check that
the data is still the same; and those only if loading them draws no random numbers and
changes no attributes. At the end of an epoch the indices of that batch are saved, if
they are plain numbers.
"""

from collections.abc import Iterator
from typing import Any, TypedDict

from torch.utils.data import _DatasetKind

from resilient.data.replay import ended
from resilient.data.torch_loader.replayed import Replayed
from resilient.objects.leaves import digest
from resilient.serialization import JSON
from resilient.state import rng


class _Last(TypedDict):
    indices: int | list[int]
    attributes: JSON


class PositionedLoader(Replayed):
    """A DataLoader over a map-style dataset, without workers."""

    schema_of_last = _Last

    def last_batch(self) -> JSON:
        newest = self._indices.newest if self._indices is not None else None
        if newest is None or not _is_plain(newest):
            return {}
        attributes = self._entries[-1]["made"]["attributes"]
        return {"indices": newest, "attributes": attributes}

    def remake_last_batch(self, position: JSON, last: JSON) -> Any:
        loader = self.loader
        fetcher = _DatasetKind.create_fetcher(
            loader._dataset_kind,
            loader.dataset,
            loader._auto_collation,
            loader.collate_fn,
            loader.drop_last,
        )
        now = self.state.lasting()
        return self._loaded(fetcher, last["indices"], last["attributes"], now)

    def seek(self, position: JSON, given: int) -> tuple[Iterator[Any], Any]:
        entry, now = self.entries_of(position)[-1], self.state.lasting()
        self.state.restore(entry["made"])
        batches: Any = self.make(entry["made"], entry["indices"])
        indices = None
        for number in range(given):
            try:
                indices = batches._next_index()
            except StopIteration:
                raise ended(self, given, number) from None
        batches._num_yielded = given
        self.state.restore(now)
        fetcher, attributes = batches._dataset_fetcher, entry["made"]["attributes"]
        return batches, self._loaded(fetcher, indices, attributes, now)

    def _loaded(self, fetcher: Any, indices: Any, attributes: JSON, now: JSON) -> Any:
        """The last batch; None if it may have been different when it was first drawn.

        Args:
            fetcher: torch's fetcher, which turns indices into batches.
            indices: The indices of the batch.
            attributes: The attributes when its iterator was created.
            now: The state now.
        """
        if indices is None or digest(attributes) != digest(now["attributes"]):
            return None
        backend = self.settings.backend
        before = rng.capture(backend)
        with self.getting_back():
            batch = fetcher.fetch(indices)
        unchanged = digest(self.state.lasting()) == digest(now)
        if unchanged and rng.capture(backend) == before:
            return batch
        self.state.restore(now)
        return None


def _is_plain(indices: Any) -> bool:
    items = indices if isinstance(indices, list) else [indices]
    return all(type(item) is int for item in items)
