"""How several processes train one model: TensorFlow's, JAX's, PyTorch's way.

``parallel_strategy`` finds the one that a model trains with. What is common to them,
and what they may do around Keras's ``fit``, is ``ParallelStrategy``.
"""

import importlib
from typing import Any

from resilient.distributed.strategies.base import ParallelStrategy


def parallel_strategy(strategy: Any, *, by_hand: bool = False) -> ParallelStrategy:
    """How this process trains together with others.

    Args:
        strategy: That of tf.distribute, on TensorFlow; else None.
        by_hand: Whether the loop is the user's own, and not Keras's ``fit``.

    Raises:
        NotSupportedError: Several processes would train, each a model of its own.
    """
    import keras

    module = importlib.import_module(f"{__name__}.{keras.backend.backend()}")
    parallel: ParallelStrategy | None = module.parallel_strategy(
        strategy, by_hand=by_hand
    )
    return parallel or ParallelStrategy()
