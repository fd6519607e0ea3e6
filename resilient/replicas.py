"""Which copies of a variable this process holds, where a model has several replicas.

Weights and optimizer are the same in all replicas: one copy is saved, and set in all of
them. What a replica computes from its own part of a batch (BatchNorm statistics, seeds,
metrics) is its own, and known by the replica's number among those of all processes:
so the same replicas may live in other processes after a resume.
"""

from typing import Any

from resilient import keras_internals

SHARED = ("trainable", "optimizer")  # groups that are equal in all replicas

# What is added to a tensor's name -> copies of it in this process, all equal.
Copies = dict[str, list[Any]]


def copies(group: str, target: Any) -> Copies:
    """The copies of a variable in this process.

    Args:
        group: Of the state that it belongs to, see ``state``.
        target: A Keras variable, or a variable or tensor of the backend.
    """
    found = _components(target)
    if not found:
        return {"": [target]}
    if group in SHARED and not keras_internals.is_read_by_replica(target):
        return {"": list(found.values())}
    return {suffix(replica): [each] for replica, each in found.items()}


def suffix(replica: int) -> str:
    """What is added to the name of a tensor that is a replica's own."""
    return f".replica_{replica}"


def _components(target: Any) -> dict[int, Any]:
    """Replica number -> its copy; empty where there is but one replica."""
    if keras_internals.BACKEND == "tensorflow":
        return keras_internals.replica_components(target)
    if keras_internals.BACKEND == "torch":
        import torch.distributed as dist

        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            return {dist.get_rank(): target}
    return {}
