"""Counts the replicas of a model, in all processes together."""

from typing import Any

import keras

from resilient import keras_internals


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
        return min(int(parallel.num_model_replicas), ranks())
    return ranks()


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
    return ranks() > 1


def ranks() -> int:
    """The number of torch ranks; a JAX array has one value on all devices."""
    if keras_internals.BACKEND != "torch":
        return 1
    import torch.distributed as dist

    there = dist.is_available() and dist.is_initialized()
    return int(dist.get_world_size()) if there else 1
