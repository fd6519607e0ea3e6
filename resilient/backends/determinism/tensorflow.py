"""TensorFlow: settings that are fixed when the first operation runs.

Its threads are ``intra_op_parallelism_threads``, otherwise ``TF_NUM_INTRAOP_THREADS``,
otherwise the processors of this process. How many operations run side by side
(``inter_op``) changes no byte.
"""

from typing import Any

import tensorflow as tf

# There is no public way to ask for either.
from tensorflow.python.eager import context
from tensorflow.python.framework import config

from resilient.backends.determinism import environment


def make_deterministic(threads: int | None) -> None:
    """See ``resilient.deterministic``."""
    started = context.context()._initialized
    if threads is not None and started and threads != _threads():
        raise environment.too_late("TensorFlow has started its threads", _threads())
    repeats = config.is_op_determinism_enabled() and environment.xla_is_deterministic()
    if not started:
        environment.make_xla_deterministic()
    elif _on_gpu() and not repeats:
        raise environment.too_late(
            "TensorFlow has started its devices",
            in_effect(),
        )
    if threads is not None and not started:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.experimental.enable_op_determinism()


def in_effect() -> dict[str, Any]:
    """See ``resilient.determinism.in_effect``."""
    found: dict[str, Any] = {
        "device": "gpu" if _on_gpu() else "cpu",
        "op determinism": config.is_op_determinism_enabled(),
    }
    if _on_gpu():
        found["deterministic XLA"] = environment.xla_is_deterministic()
    else:
        found["threads"] = _threads()
    return found


def _on_gpu() -> bool:
    """Starts the devices."""
    return bool(tf.config.list_logical_devices("GPU"))


def _threads() -> int:
    return (
        tf.config.threading.get_intra_op_parallelism_threads()
        or environment.positive("TF_NUM_INTRAOP_THREADS")
        or environment.processors()
    )
