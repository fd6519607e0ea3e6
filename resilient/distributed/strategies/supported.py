"""Refuses strategies whose state could be saved only partly."""

from typing import Any

from resilient import keras_internals
from resilient.errors import NotSupportedError


def require_supported(strategy: Any) -> None:
    """Raise if training under a strategy cannot be resumed exactly.

    Strategies that keep a copy of every variable on every replica are supported:
    ``MirroredStrategy``, ``MultiWorkerMirroredStrategy``, and ``TPUStrategy``, which
    has never been tested.

    Args:
        strategy: The tf.distribute strategy; None on other backends.

    Raises:
        NotSupportedError: Names the strategy that was found.
    """
    if keras_internals.BACKEND != "tensorflow":
        return
    import tensorflow as tf

    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        raise NotSupportedError(
            "Keras 3 does not train with parameter servers: its fit cannot send "
            "steps to workers that do not wait for each other.",
            received=f"{type(strategy).__name__}",
            hint="Write a custom training loop with "
            "tf.distribute.coordinator.ClusterCoordinator and "
            "resilient.Checkpoints (see Parameter servers in the "
            "documentation), or use MultiWorkerMirroredStrategy.",
        )
    known = (
        tf.distribute.MirroredStrategy,
        tf.distribute.MultiWorkerMirroredStrategy,
        tf.distribute.TPUStrategy,
    )
    if strategy.num_replicas_in_sync > 1 and not isinstance(strategy, known):
        raise NotSupportedError(
            "Training under this strategy cannot be resumed exactly.",
            received=f"{type(strategy).__name__}, {strategy.num_replicas_in_sync} "
            "replicas",
            hint="Use MirroredStrategy or MultiWorkerMirroredStrategy, or model.fit.",
        )
