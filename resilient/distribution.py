"""Refuses what several replicas or processes would need, until that is built.

Saving one replica's share as if it were all would resume with other values: an error
is the honest answer.
"""

import os
from typing import Any

import keras

from resilient import keras_internals
from resilient.errors import NotSupportedError, describe


def require_one_replica(model: keras.Model) -> None:
    """Raise where a model trains on more than one device or process.

    Raises:
        NotSupportedError: Names the strategy or launcher that was found.
    """
    found = _found(model)
    if found:
        raise NotSupportedError(
            describe(
                "Training on several devices or processes cannot be resumed yet.",
                found,
                "Train on one device in one process, or use model.fit.",
            )
        )


def _found(model: keras.Model) -> str | None:
    distribution = keras.distribution.distribution()
    if distribution is not None:
        return f"keras.distribution {type(distribution).__name__}"
    if keras_internals.BACKEND == "tensorflow":
        strategy: Any = model.distribute_strategy
        replicas = int(strategy.num_replicas_in_sync)
        if replicas > 1:
            return f"{type(strategy).__name__} with {replicas} replicas"
    world = os.environ.get("WORLD_SIZE", "1")
    if keras_internals.BACKEND == "torch" and world not in ("", "1"):
        return f"WORLD_SIZE={world}"
    return None
