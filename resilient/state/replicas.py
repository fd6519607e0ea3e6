"""Which copies of a variable this process holds, where a model has several replicas.

Weights and optimizer are the same in all replicas: one copy is saved, and restored to
all of them. What a replica computes from its part of a batch (BatchNorm statistics,
seeds, metrics) is its own. It is named by the replica's number among those of all
processes, so a resume may place replicas in other processes.
"""

from typing import Any

import keras

from resilient import keras_internals
from resilient.keras_internals.strategies import is_read_by_replica, replica_components

SHARED = ("trainable", "optimizer")  # groups that are equal in all replicas

# What is added to a tensor's name -> copies of it in this process, all equal.
Copies = dict[str, list[Any]]


def copies(group: str, target: Any) -> Copies:
    """The copies of a variable, of Keras or of the backend, in this process.

    Args:
        group: Of the state that it belongs to, see ``variables``.
        target: The variable.
    """
    found = _components(target)
    if not found:
        return {"": [target]}
    if group in SHARED and not is_read_by_replica(target):
        return {"": list(found.values())}
    return {suffix(replica): [each] for replica, each in found.items()}


def count(model: keras.Model) -> int:
    """How many replicas a model has, in all processes together."""
    return count_under(strategy_of(model))


def count_under(strategy: Any) -> int:
    """The same under a strategy of tf.distribute; None on other backends."""
    if keras_internals.BACKEND == "tensorflow":
        return int(strategy.num_replicas_in_sync)
    parallel = keras.distribution.distribution()
    if keras_internals.BACKEND == "torch" and parallel is not None:
        # A process has one, on however many devices.
        return min(int(parallel.num_model_replicas), _ranks())
    return _ranks()


def strategy_of(model: keras.Model) -> Any:
    """The ``tf.distribute`` strategy of a model; None on other backends."""
    return getattr(model, "distribute_strategy", None)


def are_in_several_processes(model: keras.Model) -> bool:
    """Whether sums over replicas, or over devices, are taken between processes."""
    if keras_internals.BACKEND == "tensorflow":
        strategy = model.distribute_strategy
        return count(model) > len(strategy.extended.worker_devices)
    if keras_internals.BACKEND == "jax":
        import jax

        return bool(jax.process_count() > 1)
    return _ranks() > 1


def suffix(replica: int) -> str:
    """What is added to the name of a tensor that is a replica's own."""
    return f".replica_{replica}"


def _components(target: Any) -> dict[int, Any]:
    """Replica number -> its copy; empty with a single replica."""
    if keras_internals.BACKEND == "tensorflow":
        return replica_components(target)
    if keras_internals.BACKEND == "torch" and count_under(None) > 1:
        return _of_this_rank(target)
    return {}


def _of_this_rank(target: Any) -> dict[int, Any]:
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor

    if isinstance(getattr(target, "_value", target), DTensor):
        return {}  # ranks hold one value together, each its part
    parallel = keras.distribution.distribution()
    # Ranks that hold one replica together have equal copies.
    return {dist.get_rank() if parallel is None else parallel.data_shard_id: target}


def _ranks() -> int:
    """How many ranks of torch train; a JAX array has one value on all devices."""
    if keras_internals.BACKEND != "torch":
        return 1
    import torch.distributed as dist

    there = dist.is_available() and dist.is_initialized()
    return int(dist.get_world_size()) if there else 1
