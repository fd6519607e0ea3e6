"""JAX: ``jax.distributed``, with the layouts of ``keras.distribution``."""

import atexit
import ctypes
import os
from collections.abc import Iterable

import jax
import keras
import numpy as np
from jax._src import distributed
from jax.experimental import multihost_utils

from resilient.distributed.strategies import base
from resilient.errors import NotSupportedError

_COUNT = "KERAS_DISTRIBUTION_NUM_PROCESSES"


class JaxProcesses(base.KerasProcesses):
    """The processes that ``jax.distributed.initialize`` connected."""

    def __init__(self) -> None:
        self.index = jax.process_index()
        self.count = jax.process_count()
        self.host = base.host_of(str(distributed.global_state.coordinator_address))

    def _broadcast(self, numbers: list[int]) -> Iterable[int]:
        mine = np.asarray(numbers, np.uint8)
        return list(np.asarray(multihost_utils.broadcast_one_to_all(mine)))

    def peer_lost(self) -> None:
        atexit.register(_leave)  # runs before JAX's own handlers


def parallel_strategy(strategy: None, *, by_hand: bool) -> JaxProcesses | None:
    """The JAX processes of this program, if there are several."""
    if jax.process_count() == 1:
        count = os.environ.get(_COUNT, "1")
        if count in ("", "1"):
            return None
        raise base.models_of_their_own(
            f"{_COUNT}={count}, and jax.distributed is not initialized"
        )
    distribution = keras.distribution.distribution()
    if distribution is None:
        raise base.models_of_their_own(
            f"{jax.process_count()} JAX processes and no keras.distribution"
        )
    if not hasattr(distribution, "num_model_replicas"):
        raise NotSupportedError(
            "Several JAX processes need a newer Keras: this one does not tell which "
            "part of a batch belongs to which process.",
            received=f"Keras {keras.__version__}",
            hint="Update Keras, or train in one process.",
        )
    return JaxProcesses()


def _leave() -> None:
    """Let this process exit without waiting for the others.

    JAX waits for all of them, even lost ones, for a minute and a half, and then aborts.
    """
    state = distributed.global_state
    for held in (state.client, state.service, state.preemption_sync_manager):
        # Its destructor would also wait or abort.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))
    state.client = state.service = state.preemption_sync_manager = None
