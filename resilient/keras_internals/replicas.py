"""Knows the replicas of a model: how many there are, and their copies of a variable."""

from typing import Any

import keras

from resilient.keras_internals.names import BACKEND


def replica_components(variable: Any) -> dict[int, Any]:
    """The ``tf.Variable`` of each replica in this process, by the replica's number.

    Empty without a strategy of several replicas.
    """
    import tensorflow as tf

    value = getattr(variable, "_value", variable)
    if not isinstance(value, tf.distribute.DistributedValues):
        return {}
    strategy = value.distribute_strategy
    if strategy.num_replicas_in_sync == 1:
        return {}
    return dict(enumerate(value.values, _first_replica(strategy)))


def of_each_replica(value: Any) -> Any:
    """A tuple of what each replica in this process has; others than these unchanged."""
    if BACKEND == "jax" and not getattr(value, "is_fully_addressable", True):
        return tuple(shard.data for shard in value.addressable_shards)
    if BACKEND != "tensorflow":
        return value
    import tensorflow as tf

    if not isinstance(value, tf.distribute.DistributedValues):
        return value
    return tuple(value.values)


def _first_replica(strategy: Any) -> int:
    """The number of this process's first replica among those of all workers."""
    resolver = strategy.cluster_resolver
    if resolver is None or not resolver.cluster_spec().as_dict():
        return 0
    chiefs = len(resolver.cluster_spec().as_dict().get("chief", ()))
    index = int(resolver.task_id) + (chiefs if resolver.task_type == "worker" else 0)
    return index * len(strategy.extended.worker_devices)


def is_read_by_replica(variable: Any) -> bool:
    """Whether replicas sum up a ``tf.Variable`` only when it is read."""
    if BACKEND != "tensorflow":
        return False
    import tensorflow as tf

    value = getattr(variable, "_value", variable)
    return bool(value.synchronization == tf.VariableSynchronization.ON_READ)


def count(model: keras.Model) -> int:
    """The number of replicas of a model in all processes together."""
    return count_under(strategy_of(model))


def count_under(strategy: Any) -> int:
    """The same for a tf.distribute strategy; None on other backends."""
    if BACKEND == "tensorflow":
        # A layer alone has none.
        return 1 if strategy is None else int(strategy.num_replicas_in_sync)
    parallel = keras.distribution.distribution()
    if BACKEND == "torch" and parallel is not None:
        # A process has one replica, on any number of devices.
        return min(int(parallel.num_model_replicas), ranks())
    return ranks()


def strategy_of(model: keras.Model) -> Any:
    """The ``tf.distribute`` strategy of a model; None on other backends."""
    return getattr(model, "distribute_strategy", None)


def are_in_several_processes(model: keras.Model) -> bool:
    """Whether sums over replicas or devices cross processes."""
    if BACKEND == "tensorflow":
        strategy = model.distribute_strategy
        return count(model) > len(strategy.extended.worker_devices)
    if BACKEND == "jax":
        import jax

        return bool(jax.process_count() > 1)
    return ranks() > 1


def ranks() -> int:
    """The number of torch ranks; a JAX array has one value on all devices."""
    if BACKEND != "torch":
        return 1
    import torch.distributed as dist

    there = dist.is_available() and dist.is_initialized()
    return int(dist.get_world_size()) if there else 1
