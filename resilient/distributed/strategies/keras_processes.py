"""Processes in which Keras itself trains one model: on JAX, and on torch since 3.16.

Each trains everything its data yields; ``keras.distribution`` splits what it can.
"""

import warnings
from collections.abc import Iterable
from typing import Any

import keras

from resilient import keras_internals
from resilient.distributed.checks.batches import compared
from resilient.distributed.group import Group
from resilient.distributed.strategies.base import ParallelStrategy
from resilient.errors import NotSupportedError


class KerasProcesses(ParallelStrategy):
    """Mixed into the processes of a library."""

    _warned = False

    def rows(
        self, batches: Iterable[Any], data: Any, name: str, group: Group
    ) -> Iterable[Any]:
        distribution = keras.distribution.distribution()
        shard = self.index if distribution is None else distribution.data_shard_id
        warn = self._warn_once if name == "x" else None  # validation data may be shared
        return compared(batches, name, group, int(shard), warn)

    def draws_all(self, data: Any) -> bool:
        distribution = keras.distribution.distribution()
        if distribution is None:
            return False
        divided = (
            keras_internals.data_kind(data) == "TFDatasetAdapter"
            and distribution.auto_shard_dataset
        )
        return bool(divided or distribution.num_model_replicas == 1)

    def _warn_once(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(text, stacklevel=2)


def models_of_their_own(received: str) -> NotSupportedError:
    """The error if each process would train its own model.

    Args:
        received: What indicates several processes, and what is missing.
    """
    return NotSupportedError(
        "The processes are not connected: each would train its own model.",
        received=received,
        hint="First call keras.distribution.initialize(), then "
        "keras.distribution.set_distribution(keras.distribution.DataParallel()), or "
        "ModelParallel with a layout map, before you create the model.",
    )
