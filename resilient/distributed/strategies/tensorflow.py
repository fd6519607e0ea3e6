"""TensorFlow's ``MultiWorkerMirroredStrategy``, with the cluster of ``TF_CONFIG``."""

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import tensorflow as tf

from resilient import keras_internals
from resilient.distributed.strategies.base import ParallelStrategy, host_of
from resilient.errors import NotSupportedError
from resilient.keras_internals.multi_worker import corrected


class MultiWorker(ParallelStrategy):
    """The workers of a strategy's cluster."""

    divides_arrays = True

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        resolver = strategy.cluster_resolver
        cluster = resolver.cluster_spec().as_dict()
        tasks = _tasks(cluster)
        job, number = tasks[0]
        self.index = tasks.index((resolver.task_type, resolver.task_id))
        self.count = len(tasks)
        self.host = host_of(cluster[job][number])
        self._strategy = strategy

    def _broadcast(self, numbers: list[int]) -> Iterable[int]:
        def value(context: Any) -> tf.Tensor:
            first = context.replica_id_in_sync_group == 0
            return tf.constant(numbers if first else [0] * len(numbers))

        each = self._strategy.experimental_distribute_values_from_function(value)
        total = self._strategy.reduce(tf.distribute.ReduceOp.SUM, each, axis=None)
        return list(total.numpy())

    def training(self, model: keras.Model) -> contextlib.AbstractContextManager[None]:
        return corrected(model)

    def draws_all(self, data: Any) -> bool:
        kind = keras_internals.data_kind(data)
        if kind != "TFDatasetAdapter":
            return kind == "ArrayDataAdapter"
        policy = data.options().experimental_distribute.auto_shard_policy
        return bool(policy == tf.data.experimental.AutoShardPolicy.DATA)


def parallel_strategy(
    strategy: tf.distribute.Strategy, *, by_hand: bool
) -> MultiWorker | None:
    """The cluster of a strategy, if there are several workers."""
    _require_supported(strategy)
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        resolver = strategy.cluster_resolver
        several = resolver and len(_tasks(resolver.cluster_spec().as_dict())) > 1
        return MultiWorker(strategy) if several else None
    config = json.loads(os.environ.get("TF_CONFIG") or "{}")
    cluster, task = config.get("cluster", {}), config.get("task", {}).get("type")
    workers = len(_tasks(cluster))
    if workers > 1 and task in _JOBS and "ps" not in cluster:
        raise NotSupportedError(
            "Each worker of the cluster would train its own model.",
            received=(
                f"TF_CONFIG with {workers} workers, and a model that was created "
                f"under {type(strategy).__name__}"
            ),
            hint="Create and compile the model in the scope of "
            "tf.distribute.MultiWorkerMirroredStrategy(). Create that "
            "strategy before using anything else in TensorFlow.",
        )
    return None


_JOBS = ("chief", "worker")


def _tasks(cluster: Mapping[str, Any]) -> list[tuple[str, int]]:
    """The workers of a cluster, numbered as by the strategy: a chief comes first."""
    return [(job, i) for job in _JOBS for i in range(len(cluster.get(job, ())))]


def _require_supported(strategy: tf.distribute.Strategy) -> None:
    """Raise if training under a strategy cannot be resumed exactly.

    Strategies that keep a copy of every variable on every replica are supported:
    ``MirroredStrategy``, ``MultiWorkerMirroredStrategy``, and ``TPUStrategy``, which
    has never been tested.
    """
    known = (
        tf.distribute.MirroredStrategy,
        tf.distribute.MultiWorkerMirroredStrategy,
        tf.distribute.TPUStrategy,
    )
    served = isinstance(strategy, tf.distribute.ParameterServerStrategy)
    several = served or strategy.num_replicas_in_sync > 1
    if several and not isinstance(strategy, known):
        raise NotSupportedError(
            "Training under this strategy cannot be resumed exactly.",
            received=type(strategy).__name__,
            hint="Use MirroredStrategy or MultiWorkerMirroredStrategy. With parameter "
            "servers, write a custom training loop with "
            "tf.distribute.coordinator.ClusterCoordinator and resilient.Checkpoints "
            "(see Parameter servers in the documentation).",
        )
