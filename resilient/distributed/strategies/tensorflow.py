"""TensorFlow's ``MultiWorkerMirroredStrategy``, with the cluster of ``TF_CONFIG``."""

import contextlib
import json
import os
from typing import Any

import keras
import tensorflow as tf

from resilient import keras_internals
from resilient.distributed.strategies.base import (
    LENGTH,
    ParallelStrategy,
    as_bytes,
    as_text,
    host_of,
)
from resilient.errors import NotSupportedError
from resilient.keras_internals.multi_worker import corrected


class MultiWorker(ParallelStrategy):
    """The workers of a strategy's cluster."""

    divides_arrays = True

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        resolver = strategy.cluster_resolver
        cluster = resolver.cluster_spec().as_dict()
        # Numbered as by the strategy: a chief comes first.
        tasks = [(job, i) for job in _JOBS for i in range(len(cluster.get(job, ())))]
        job, number = tasks[0]
        self.index = tasks.index((resolver.task_type, resolver.task_id))
        self.count = len(tasks)
        self.host = host_of(cluster[job][number])
        self._strategy = strategy

    def broadcast(self, text: str) -> str:
        def value(context: Any) -> tf.Tensor:
            first = context.replica_id_in_sync_group == 0
            return tf.constant(as_bytes(text) if first else [0] * LENGTH)

        each = self._strategy.experimental_distribute_values_from_function(value)
        total = self._strategy.reduce(tf.distribute.ReduceOp.SUM, each, axis=None)
        return as_text(total.numpy())

    def training(self, model: keras.Model) -> contextlib.AbstractContextManager[None]:
        return corrected(model)

    def draws_all(self, data: Any) -> bool:
        kind = keras_internals.data_kind(data)
        if kind != "TFDatasetAdapter":
            return kind == "ArrayDataAdapter"
        policy = data.options().experimental_distribute.auto_shard_policy
        return bool(policy == tf.data.experimental.AutoShardPolicy.DATA)


_JOBS = ("chief", "worker")


def parallel_strategy(
    strategy: tf.distribute.Strategy, *, by_hand: bool
) -> MultiWorker | None:
    """The cluster of a strategy, if there are several workers."""
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        parallel = MultiWorker(strategy) if _several(strategy) else None
        return parallel if parallel is not None and parallel.count > 1 else None
    told = json.loads(os.environ.get("TF_CONFIG") or "{}")
    cluster, task = told.get("cluster", {}), told.get("task", {}).get("type")
    workers = sum(len(cluster.get(job, ())) for job in _JOBS)
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


def _several(strategy: tf.distribute.Strategy) -> bool:
    resolver = strategy.cluster_resolver
    return resolver is not None and bool(resolver.cluster_spec().as_dict())
