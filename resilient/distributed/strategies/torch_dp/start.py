"""What has to be so before the ranks take a first step together.

Refuses parameters that are sharded over the ranks (FSDP, DTensor).
"""

from collections.abc import Iterable
from typing import Any

import keras
import torch
from torch import distributed

from resilient.distributed.strategies.torch_dp.averages import tensor_of
from resilient.errors import NotSupportedError


def refuse_sharded(model: keras.Model) -> None:
    """Raise where a rank holds only its part of a parameter or buffer.

    Raises:
        NotSupportedError: Names the first one.
    """
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.tensor import DTensor

    found = [
        f"{name or type(module).__name__}, a {FullyShardedDataParallel.__name__}"
        for name, module in _modules(model)
        if isinstance(module, FullyShardedDataParallel)
    ]
    tensors = [(v.path, tensor_of(v)) for v in model.variables]
    for name, module in _modules(model):
        for kind in (module.named_parameters, module.named_buffers):
            tensors += [(f"{name}.{key}".strip("."), t) for key, t in kind()]
    found += [f"{name}, a DTensor" for name, t in tensors if isinstance(t, DTensor)]
    if found:
        raise NotSupportedError(
            "Parameters that are sharded over several processes are not "
            "supported: every rank has to hold the whole model.",
            received=found[0] + (f" and {len(found) - 1} more" if found[1:] else ""),
            hint="Leave FSDP, fully_shard and DTensor out: resilient.fit averages "
            "the gradients of whole parameters itself.",
        )


def _modules(model: keras.Model) -> list[tuple[str, torch.nn.Module]]:
    """The torch modules of all layers; a layer is no submodule of its model."""
    found: dict[int, tuple[str, torch.nn.Module]] = {}
    for layer in model._flatten_layers():
        for name, module in layer.named_modules():
            found.setdefault(id(module), (name, module))
    return list(found.values())


def broadcast_variables(targets: Iterable[Any]) -> None:
    """Give every rank the values that rank 0 has.

    Args:
        targets: Keras variables and tensors, of the same shapes and dtypes in the same
            order on all ranks.
    """
    for target in targets:
        tensor = tensor_of(target).detach()
        # As bytes, so that every dtype arrives as it is.
        value = tensor.contiguous().view(-1).view(torch.uint8)
        distributed.broadcast(value, 0)
        tensor.copy_(value.view(tensor.dtype).view(tensor.shape))
