"""Decides which batch of a PyDataset comes next: Keras's order, without its threads.

Without workers, Keras draws an order for each iterator. With workers, its enqueuer
draws one each time it starts, at the beginning of an epoch. When it stops at the end of
an epoch, it keeps prefetched batches for the next epoch and drops the rest of that
order. How many those are depends on its threads, but is often the same in each run. So
if Keras peeks at a batch before it trains (JAX and torch), or leaves an iterator in the
middle of its order (``steps_per_epoch``), some batches come twice and others never.
Here an iterator follows the order that was drawn for it, each batch once.
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
        workers: Whether an order is drawn when an epoch begins.
    """

    def __init__(self, adapter: Any, *, workers: bool) -> None:
        self._adapter = adapter
        self._dataset = adapter.py_dataset
        self._workers = workers
        self._share = keras_internals.generation.share(adapter)
        self._drawn: Any = None  # when the epoch began, for its iterator
        self._order: Any = ()  # of a finite dataset: a list, or a range
        self._at = 0

    def start(self) -> None:
        """An epoch begins, or an iterator is asked for a batch outside an epoch."""
        if self._workers and self._drawn is None:
            self._drawn = self._draw()

    def begin(self) -> None:
        """A new iterator is asked for its first batch."""
        self.start()
        order = self._drawn if self._workers else self._draw()
        if self._dataset.num_batches is not None:
            self._order, self._at = order, 0
        elif not self._workers:
            self._at = 0

    def stop(self) -> None:
        """The epoch ends."""
        self._drawn = None

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
        drawn = None if self._drawn is None else _plain(self._drawn)
        return {"drawn": drawn, "order": _plain(self._order), "at": self._at}

    def resume(self, position: JSON) -> None:
        """Restore a position; the number of workers may have changed."""
        self._order, self._at = _order(position["order"]), position["at"]
        drawn = position["drawn"] if self._workers else None
        self._drawn = None if drawn is None else _order(drawn)

    def _draw(self) -> Any:
        length = self._dataset.num_batches
        if length is None or not self._adapter.shuffle:
            return range(length or 0)[self._share]
        order = list(range(length))
        keras_internals.generation.shuffle(order, self._adapter)
        return order[self._share]


def _plain(order: Any) -> Any:
    """The length of a range from 0 in steps of one; otherwise an array."""
    whole = isinstance(order, range) and order == range(len(order))
    return len(order) if whole else np.array(order, np.int64)


def _order(plain: Any) -> Any:
    return range(plain) if type(plain) is int else plain.tolist()
