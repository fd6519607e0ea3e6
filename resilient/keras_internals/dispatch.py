"""Runs Keras's asynchronous callbacks on JAX and torch in the order of batches.

Keras calls callbacks at the end of each batch in a thread pool, for several batches at
once: a progress bar may go back, and the result of an ``async_safe`` callback depends
on chance. A single thread calls them in order, and no later.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any


def tell_in_order(callbacks: Any) -> None:
    """Give a ``CallbackList`` a single thread, before training begins."""
    if callbacks._executor is None:  # an existing one is already running
        callbacks._executor = ThreadPoolExecutor(max_workers=1)


def settle(callbacks: Any) -> None:
    """Wait for all calls of a ``CallbackList``.

    Raises:
        Exception: Whatever a callback raised meanwhile.
    """
    callbacks._flush_futures()
