"""The engines that train one model in several processes: TensorFlow's, JAX's, ours.

``engine_under`` finds the one that a model trains with. What is common to them, and
what they may do around Keras's ``fit``, is ``Engine``.
"""

import importlib
from typing import Any

from resilient.distributed.strategies.base import Engine


def engine_under(strategy: Any, *, by_hand: bool = False) -> Engine:
    """The engine that trains together with others.

    Args:
        strategy: That of tf.distribute, on TensorFlow; else None.
        by_hand: Whether the loop is the user's own, and not Keras's ``fit``.

    Raises:
        NotSupportedError: Several processes would train, each a model of its own.
    """
    import keras

    module = importlib.import_module(f"{__name__}.{keras.backend.backend()}")
    engine: Engine | None = module.engine_under(strategy, by_hand=by_hand)
    return engine or Engine()
