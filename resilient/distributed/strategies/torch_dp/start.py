"""Checks and prepares a model before the ranks' first step together.

It refuses parameters that are sharded over the ranks (FSDP, DTensor).
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import keras
import torch
from torch import distributed

from resilient.distributed.strategies.torch_dp.averages import tensor_of
from resilient.errors import NotSupportedError


def refuse_sharded(model: keras.Model) -> None:
    """Raise if a rank holds only its shard of a parameter or buffer.

    Raises:
        NotSupportedError: Names the first one.
    """
    found = next(_sharded(model), None)
    if found is not None:
        raise NotSupportedError(
            "Parameters that are sharded over several processes are not supported: "
            "every rank must hold the whole model.",
            received=found,
            hint="Do not use FSDP, fully_shard or DTensor: resilient.fit averages the "
            "gradients of whole parameters itself.",
        )


def _sharded(model: keras.Model) -> Iterator[str]:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.tensor import DTensor

    for variable in model.variables:
        if isinstance(tensor_of(variable), DTensor):
            yield f"{variable.path}, a DTensor"
    for layer in model._flatten_layers():
        for name, module in layer.named_modules():
            if isinstance(module, FullyShardedDataParallel):
                yield f"{name or layer.name}, a FullyShardedDataParallel"
        # Parameters of torch modules need not be variables of the layer.
        for name, tensor in chain(layer.named_parameters(), layer.named_buffers()):
            if isinstance(tensor, DTensor):
                yield f"{layer.name}.{name}, a DTensor"


def broadcast_variables(targets: Iterable[Any]) -> None:
    """Give every rank the values of rank 0.

    Args:
        targets: Keras variables and tensors, of the same shapes and dtypes in the same
            order on all ranks.
    """
    for target in targets:
        tensor = tensor_of(target).detach()
        # As bytes, so that every dtype arrives unchanged.
        value = tensor.contiguous().view(-1).view(torch.uint8)
        distributed.broadcast(value, 0)
        tensor.copy_(value.view(tensor.dtype).view(tensor.shape))
