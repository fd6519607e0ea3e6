"""Decides which batch of a PyDataset comes next: Keras's order, without its threads.

Keras draws an order for each iterator. With workers, its enqueuer draws one each time
it starts. When it stops at the end of an epoch, it keeps prefetched batches for the
next epoch and drops the rest of that order. How many those are depends on its threads,
but is often the same in each run. So if Keras peeks at a batch before it trains (JAX
and torch), or leaves an iterator in the middle of its order (``steps_per_epoch``), some
batches come twice and others never. Here an iterator follows the order that was drawn
for it, each batch once.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from resilient import keras_internals
from resilient.serialization import JSON


class Order:
    """The indices of the coming batches.

    Args:
        counts_on: Whether iterators of an endless dataset continue one another.
    """

    def __init__(self, adapter: Any, *, counts_on: bool) -> None:
        self._adapter = adapter
        self._dataset = adapter.py_dataset
        self._counts_on = counts_on
        self._share = keras_internals.generation.share(adapter)
        self._order: Any = ()  # of a finite dataset: a list, or a range
        self._at = 0

    def begin(self) -> None:
        """A new iterator is asked for its first batch."""
        length = self._dataset.num_batches
        if length is None:
            self._at = self._at if self._counts_on else 0
            return
        self._order, self._at = range(length)[self._share], 0
        if self._adapter.shuffle:
            order = list(range(length))
            keras_internals.generation.shuffle(order, self._adapter)
            self._order = order[self._share]

    def upcoming(self) -> Iterator[int]:
        """The remaining indices."""
        if self._dataset.num_batches is None:
            first, step = self._share.start, self._share.step
            return itertools.count(first + step * self._at, step)
        return map(self._order.__getitem__, range(self._at, len(self._order)))

    def take(self) -> None:
        """Advance by one."""
        self._at += 1

    def position(self) -> JSON:
        # A range from 0 in steps of one by its length.
        order, whole = self._order, range(len(self._order))
        kept = len(order) if order == whole else np.array(order, np.int64)
        return {"order": kept, "at": self._at}

    def resume(self, position: JSON) -> None:
        """Restore a position; the number of workers may have changed."""
        order, self._at = position["order"], position["at"]
        self._order = range(order) if type(order) is int else order.tolist()
