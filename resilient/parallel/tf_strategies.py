"""Which strategies of TensorFlow's ``tf.distribute`` train under Keras's ``fit``.

All with a copy of every variable on every replica do: ``MirroredStrategy``,
``MultiWorkerMirroredStrategy``, ``TPUStrategy``. They go one way through this library;
nothing in it asks which of them it is, but ``keras_multi_worker``.
"""

from typing import Any

import tensorflow as tf

from resilient.errors import NotSupportedError, describe


def refuse_parameter_servers(strategy: Any) -> None:
    """Raise for a strategy that Keras 3 cannot train under.

    Raises:
        NotSupportedError: For ``ParameterServerStrategy``.
    """
    if not isinstance(strategy, tf.distribute.ParameterServerStrategy):
        return
    raise NotSupportedError(
        describe(
            "Keras 3 does not train with parameter servers: its fit has no way to "
            "send steps to workers that do not wait for each other.",
            type(strategy).__name__,
            "Write the loop yourself, with tf.distribute.coordinator."
            "ClusterCoordinator and tf.train.Checkpoint; or use "
            "MultiWorkerMirroredStrategy.",
        )
    )
