"""A DataLoader without workers: its order is drawn again, and only indices are skipped.

No sample is loaded to get back to a position, but those of the last batch, to see
whether the data is still the same; only where loading it can be expected to give that
batch again: where it draws no random numbers and changes no attribute.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from resilient import random_state
from resilient.data import JSON
from resilient.data.replay import ended
from resilient.data.torch_loader.replayed import Replayed


class Positioned(Replayed):
    """A DataLoader over a map-style dataset, without workers."""

    def seek(self, position: JSON, given: int) -> tuple[Iterator[Any], Any]:
        entry, now = position["entries"][-1], self.state.lasting()
        self.state.restore(entry["made"])
        batches: Any = self.make(entry["made"], entry["indices"])
        indices = None
        for number in range(given):
            try:
                indices = batches._next_index()
            except StopIteration:
                raise ended(self.name, self.settings, given, number) from None
        batches._num_yielded = given
        self.state.restore(now)
        return batches, self._loaded(batches, indices, entry["made"], now)

    def _loaded(self, batches: Any, indices: Any, made: JSON, now: JSON) -> Any:
        """The last batch, unless it may have been another one when it was drawn."""
        if indices is None or not _same(made["attributes"], now["attributes"]):
            return None
        backend = self.settings.backend
        before = random_state.capture(backend)
        batch = batches._dataset_fetcher.fetch(indices)
        if random_state.capture(backend) == before and _same(self.state.lasting(), now):
            return batch
        self.state.restore(now)
        return None


def _same(one: Any, other: Any) -> bool:
    """Whether plain values are equal, arrays in them too."""
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)
