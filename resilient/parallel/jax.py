"""JAX: ``jax.distributed``, with the layouts of ``keras.distribution``."""

import atexit
import ctypes
import os
import warnings
from collections.abc import Iterable
from typing import Any

import jax
import keras
import numpy as np
from jax._src import distributed
from jax.experimental import multihost_utils

from resilient import keras_internals
from resilient.distributed.group import Group
from resilient.errors import NotSupportedError, describe
from resilient.parallel.engine import Engine, as_bytes, as_text, host_of
from resilient.parallel.same_batches import compared

_COORDINATOR = ("JAX_COORDINATOR_ADDRESS", "KERAS_DISTRIBUTION_JOB_ADDRESSES")
_COUNT = "KERAS_DISTRIBUTION_NUM_PROCESSES"


class JaxProcesses(Engine):
    """The processes that ``jax.distributed.initialize`` connected."""

    def __init__(self) -> None:
        self._warned = False
        self.index = jax.process_index()
        self.count = jax.process_count()
        self.host = host_of(_coordinator())

    def broadcast(self, text: str) -> str:
        said = np.asarray(as_bytes(text), np.uint8)
        return as_text(np.asarray(multihost_utils.broadcast_one_to_all(said)))

    def rows(
        self, batches: Iterable[Any], data: Any, name: str, group: Group
    ) -> Iterable[Any]:
        distribution = keras.distribution.distribution()
        warn = self._warn_once if name == "x" else None  # validation may be in common
        return compared(batches, name, group, int(distribution.data_shard_id), warn)

    def draws_all(self, data: Any) -> bool:
        distribution = keras.distribution.distribution()
        divided = (
            keras_internals.data_kind(data) == "TFDatasetAdapter"
            and distribution.auto_shard_dataset
        )
        return bool(divided or distribution.num_model_replicas == 1)

    def peer_lost(self) -> None:
        atexit.register(_leave)  # before what JAX registered

    def _warn_once(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(text, stacklevel=2)


def engine_under(strategy: None) -> JaxProcesses | None:
    """The processes of this program, if there are several."""
    if jax.process_count() == 1:
        told = os.environ.get(_COUNT, "1")
        if told in ("", "1"):
            return None
        raise NotSupportedError(
            describe(
                "Each process would train a model of its own.",
                f"{_COUNT}={told}, and jax.distributed is not initialized",
                "Call keras.distribution.initialize() first of all, then "
                "keras.distribution.set_distribution(...).",
            )
        )
    distribution = keras.distribution.distribution()
    if distribution is None:
        raise NotSupportedError(
            describe(
                "Each process would train a model of its own.",
                f"{jax.process_count()} JAX processes and no keras.distribution",
                "Call keras.distribution.set_distribution("
                "keras.distribution.DataParallel()) before the model is made, or "
                "ModelParallel with a layout map.",
            )
        )
    if not hasattr(distribution, "num_model_replicas"):
        raise NotSupportedError(
            describe(
                "Several JAX processes need a newer Keras: this one does not tell "
                "which part of a batch is a process's.",
                f"Keras {keras.__version__}",
                "Update Keras, or train in one process.",
            )
        )
    return JaxProcesses()


def _leave() -> None:
    """Let JAX wait for nobody while this process ends.

    It waits for all processes, a lost one too: for a minute and a half, and aborts.
    """
    state = distributed.global_state
    for held in (state.client, state.service, state.preemption_sync_manager):
        # Destroyed, it would wait, too, or abort.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))
    state.client = state.service = state.preemption_sync_manager = None


def _coordinator() -> str:
    address = distributed.global_state.coordinator_address
    if address:
        return str(address)
    told = next((os.environ[name] for name in _COORDINATOR if name in os.environ), "")
    return told.partition(",")[0]
