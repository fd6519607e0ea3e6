"""The copies of a Keras variable under a strategy of ``tf.distribute``."""

from typing import Any

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
