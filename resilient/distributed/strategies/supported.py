"""Refuses strategies whose state could be saved only in part."""

from typing import Any

from resilient import keras_internals
from resilient.errors import NotSupportedError


def require_supported(strategy: Any) -> None:
    """Raise where training under a strategy cannot be resumed exactly.

    Supported are those that keep a copy of every variable on every replica:
    ``MirroredStrategy``, ``MultiWorkerMirroredStrategy``, and ``TPUStrategy``, which
    was never run.

    Args:
        strategy: Of tf.distribute; None on other backends.

    Raises:
        NotSupportedError: Names the strategy that was found.
    """
    if keras_internals.BACKEND != "tensorflow":
        return
    import tensorflow as tf

    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        raise NotSupportedError(
            "Keras 3 does not train with parameter servers: its fit has no way to "
            "send steps to workers that do not wait for each other.",
            received=f"{type(strategy).__name__}",
            hint="Write the loop yourself, with tf.distribute.coordinator."
            "ClusterCoordinator and resilient.Checkpoints (see the docs, Parameter "
            "servers), or use MultiWorkerMirroredStrategy.",
        )
    known = (
        tf.distribute.MirroredStrategy,
        tf.distribute.MultiWorkerMirroredStrategy,
        tf.distribute.TPUStrategy,
    )
    if strategy.num_replicas_in_sync > 1 and not isinstance(strategy, known):
        raise NotSupportedError(
            "Training distributed in this way cannot be resumed exactly.",
            received=f"{type(strategy).__name__}, {strategy.num_replicas_in_sync} "
            "replicas",
            hint="Use MirroredStrategy or MultiWorkerMirroredStrategy, or model.fit.",
        )
