"""Keras's asynchronous callbacks, on JAX and torch: in the order of the batches.

Keras hands the end of each batch to a pool of threads, which tell callbacks of several
batches at once: a progress bar goes back, and what a callback with ``async_safe`` ends
with depends on chance. One thread tells them in order, and no later.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any


def tell_in_order(callbacks: Any) -> None:
    """Let one thread tell a ``CallbackList`` of all batches; training has not begun."""
    if callbacks._executor is None:  # one that is there has begun
        callbacks._executor = ThreadPoolExecutor(max_workers=1)


def settle(callbacks: Any) -> None:
    """Wait until a ``CallbackList`` is done with the batches before.

    Raises:
        Exception: What a callback raised meanwhile.
    """
    callbacks._flush_futures()
