"""Refuses what several processes would need, until that is built.

Saving one process's share as if it were all would resume with other values: an error
is the honest answer. Several devices of one process work with TensorFlow's
``MirroredStrategy``: every replica's component of a variable is saved.
"""

import os
from typing import Any

import keras

from resilient import keras_internals
from resilient.errors import NotSupportedError, describe


def require_one_process(model: keras.Model) -> None:
    """Raise where a model trains in a way whose state we could save only in part.

    Raises:
        NotSupportedError: Names the strategy or launcher that was found.
    """
    found = _found(model)
    if found:
        raise NotSupportedError(
            describe(
                "Training distributed in this way cannot be resumed exactly yet.",
                found,
                "Train in one process (on TensorFlow also with MirroredStrategy), or "
                "use model.fit.",
            )
        )


def _found(model: keras.Model) -> str | None:
    distribution = keras.distribution.distribution()
    if distribution is not None:
        return f"keras.distribution {type(distribution).__name__}"
    if keras_internals.BACKEND == "tensorflow":
        import tensorflow as tf

        strategy: Any = model.distribute_strategy
        replicas = int(strategy.num_replicas_in_sync)
        if replicas > 1 and not isinstance(strategy, tf.distribute.MirroredStrategy):
            return f"{type(strategy).__name__} with {replicas} replicas"
    world = os.environ.get("WORLD_SIZE", "1")
    if keras_internals.BACKEND == "torch" and world not in ("", "1"):
        return f"WORLD_SIZE={world}"
    return None
