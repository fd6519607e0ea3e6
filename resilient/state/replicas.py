"""Finds the copies of a variable in this process, if a model has several replicas.

Weights and optimizer are the same in all replicas: one copy is saved, and restored to
all. State that a replica computes from its part of a batch (BatchNorm statistics,
seeds, metrics) is its own, and is named by the replica's global number, so a resume may
place replicas in different processes.
"""

from typing import Any

import keras

from resilient import keras_internals
from resilient.keras_internals.strategies import is_read_by_replica, replica_components

SHARED = ("trainable", "optimizer")  # groups that are equal in all replicas

# Suffix of a tensor's name -> its copies in this process, all equal.
Copies = dict[str, list[Any]]


def copies(group: str, target: Any) -> Copies:
    """The copies in this process of a Keras or backend variable.

    Args:
        group: The group of state that it belongs to, see ``variables``.
        target: The variable.
    """
    found = _components(target)
    if not found:
        return {"": [target]}
    if group in SHARED and not is_read_by_replica(target):
        return {"": list(found.values())}
    return {f".replica_{number}": [each] for number, each in found.items()}


def count(model: keras.Model) -> int:
    """The number of replicas of a model in all processes together."""
    return count_under(strategy_of(model))


def count_under(strategy: Any) -> int:
    """The same for a tf.distribute strategy; None on other backends."""
    if keras_internals.BACKEND == "tensorflow":
        # A layer alone has none.
        return 1 if strategy is None else int(strategy.num_replicas_in_sync)
    parallel = keras.distribution.distribution()
    if keras_internals.BACKEND == "torch" and parallel is not None:
        # A process has one replica, on any number of devices.
        return min(int(parallel.num_model_replicas), _ranks())
    return _ranks()


def strategy_of(model: keras.Model) -> Any:
    """The ``tf.distribute`` strategy of a model; None on other backends."""
    return getattr(model, "distribute_strategy", None)


def are_in_several_processes(model: keras.Model) -> bool:
    """Whether sums over replicas or devices cross processes."""
    if keras_internals.BACKEND == "tensorflow":
        strategy = model.distribute_strategy
        return count(model) > len(strategy.extended.worker_devices)
    if keras_internals.BACKEND == "jax":
        import jax

        return bool(jax.process_count() > 1)
    return _ranks() > 1


def _components(target: Any) -> dict[int, Any]:
    """Replica number -> its copy; empty with a single replica."""
    if keras_internals.BACKEND == "tensorflow":
        return replica_components(target)
    several = keras_internals.BACKEND == "torch" and _ranks() > 1
    if several and count_under(None) > 1:
        return _of_this_rank(target)
    return {}


def _of_this_rank(target: Any) -> dict[int, Any]:
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor

    if isinstance(getattr(target, "_value", target), DTensor):
        return {}  # ranks hold shards of one value
    parallel = keras.distribution.distribution()
    # Ranks that share one replica have equal copies.
    return {dist.get_rank() if parallel is None else parallel.data_shard_id: target}


def _ranks() -> int:
    """The number of torch ranks; a JAX array has one value on all devices."""
    if keras_internals.BACKEND != "torch":
        return 1
    import torch.distributed as dist

    there = dist.is_available() and dist.is_initialized()
    return int(dist.get_world_size()) if there else 1
