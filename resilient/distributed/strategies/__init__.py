"""Adapts distributed training with TensorFlow, JAX and PyTorch.

``parallel_strategy`` finds the strategy that a model trains with. ``ParallelStrategy``
is their interface.
"""

import importlib
from typing import Any

from resilient.distributed.strategies.base import ParallelStrategy


def parallel_strategy(strategy: Any, *, by_hand: bool = False) -> ParallelStrategy:
    """The strategy by which this process trains together with others.

    Args:
        strategy: The tf.distribute strategy on TensorFlow; else None.
        by_hand: Whether the loop is the user's own, not Keras's ``fit``.

    Raises:
        NotSupportedError: Each of several processes would train its own model.
    """
    import keras

    module = importlib.import_module(f"{__name__}.{keras.backend.backend()}")
    parallel: ParallelStrategy | None = module.parallel_strategy(
        strategy, by_hand=by_hand
    )
    return parallel or ParallelStrategy()
