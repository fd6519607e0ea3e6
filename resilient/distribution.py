"""Refuses the ways to distribute a training whose state could be saved only in part."""

from typing import Any

import keras

from resilient import keras_internals
from resilient.errors import NotSupportedError, describe


def require_supported(model: keras.Model) -> None:
    """Raise where a model trains in a way that cannot be resumed exactly.

    Raises:
        NotSupportedError: Names the strategy that was found.
    """
    if keras_internals.BACKEND != "tensorflow":
        return
    import tensorflow as tf

    strategy: Any = model.distribute_strategy
    known = (
        tf.distribute.MirroredStrategy,
        tf.distribute.MultiWorkerMirroredStrategy,
        tf.distribute.TPUStrategy,
    )
    if strategy.num_replicas_in_sync == 1 or isinstance(strategy, known):
        return
    raise NotSupportedError(
        describe(
            "Training distributed in this way cannot be resumed exactly yet.",
            f"{type(strategy).__name__} with {strategy.num_replicas_in_sync} replicas",
            "Use MirroredStrategy or MultiWorkerMirroredStrategy, or model.fit.",
        )
    )
