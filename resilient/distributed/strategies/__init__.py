"""How several processes train one model: TensorFlow's, JAX's, PyTorch's way.

``parallel_strategy`` finds the one that a model trains with. ``ParallelStrategy`` is
their interface.
"""

import importlib
from typing import Any

from resilient.distributed.strategies.base import ParallelStrategy


def parallel_strategy(strategy: Any, *, by_hand: bool = False) -> ParallelStrategy:
    """How this process trains together with others.

    Args:
        strategy: That of tf.distribute, on TensorFlow; else None.
        by_hand: Whether the loop is the user's own, not Keras's ``fit``.

    Raises:
        NotSupportedError: Each of several processes would train a model of its own.
    """
    import keras

    module = importlib.import_module(f"{__name__}.{keras.backend.backend()}")
    parallel: ParallelStrategy | None = module.parallel_strategy(
        strategy, by_hand=by_hand
    )
    return parallel or ParallelStrategy()
