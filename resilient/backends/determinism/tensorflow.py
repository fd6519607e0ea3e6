"""TensorFlow: settings that are fixed when the first operation runs.

Threads are ``intra_op_parallelism_threads``, otherwise ``TF_NUM_INTRAOP_THREADS``,
otherwise the processors of this process. How many operations run side by side
(``inter_op``) changes no byte.
"""

import os
from typing import Any

import tensorflow as tf

# There is no public way to ask for either.
from tensorflow.python.eager import context
from tensorflow.python.framework import config

from resilient.backends import determinism


def make_deterministic(threads: int | None) -> None:
    """See ``resilient.deterministic``."""
    started = context.context()._initialized
    flags = determinism.deterministic_xla_flags()
    if threads is not None and started and threads != _threads():
        what = "TensorFlow has already started its threads"
        raise determinism.too_late(what, _threads())
    repeats = config.is_op_determinism_enabled() and flags == determinism.xla_flags()
    if started and _on_gpu() and not repeats:
        what = "TensorFlow has already started its devices"
        raise determinism.too_late(what, in_effect())
    if not started:
        os.environ[determinism.XLA_FLAGS] = flags
        if threads is not None:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.experimental.enable_op_determinism()


def in_effect() -> dict[str, Any]:
    """See ``resilient.backends.determinism.in_effect``."""
    found = {
        "device": "gpu" if _on_gpu() else "cpu",
        "op determinism": config.is_op_determinism_enabled(),
    }
    if _on_gpu():
        return found | {determinism.XLA_FLAGS: determinism.xla_flags()}
    return found | {"threads": _threads()}


def _on_gpu() -> bool:
    """Starts the devices."""
    return bool(tf.config.list_logical_devices("GPU"))


def _threads() -> int:
    told = tf.config.threading.get_intra_op_parallelism_threads()
    return told or determinism.threads_by("TF_NUM_INTRAOP_THREADS")
