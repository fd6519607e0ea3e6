"""What has to be so before the ranks take a first step together.

Refuses parameters that are sharded over the ranks (FSDP, DTensor).
"""

from collections.abc import Sequence
from typing import Any

import keras
import torch
from torch import distributed

from resilient.distributed.strategies.torch_dp.averaging import tensor_of
from resilient.errors import NotSupportedError, ResilientError

_BYTES = 25 * 2**20


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


def broadcast_variables(targets: Sequence[Any], group: Any = None) -> None:
    """Give every rank the values that rank 0 has.

    Bytes are sent, so every dtype arrives as it is.

    Args:
        targets: Keras variables and tensors, in the same order on all ranks.
        group: Of processes; the default one where none is given.

    Raises:
        ResilientError: The ranks hold other shapes or dtypes, or another number.
    """
    tensors = [tensor_of(target).detach() for target in targets]
    _require_same_layout(tensors, group)
    some: list[torch.Tensor] = []
    for number, tensor in enumerate(tensors):
        some.append(tensor)
        last = number + 1 == len(tensors)
        if (
            last
            or sum(t.nbytes for t in some) >= _BYTES
            or tensors[number + 1].device != tensor.device
        ):
            _broadcast(some, group)
            some = []


def _require_same_layout(tensors: Sequence[torch.Tensor], group: Any) -> None:
    layout = [(tuple(t.shape), str(t.dtype), t.device.type) for t in tensors]
    everyones: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(everyones, layout, group=group)
    for rank, theirs in enumerate(everyones):
        if theirs != everyones[0]:
            pairs = zip(theirs, everyones[0], strict=False)
            other = next((pair for pair in pairs if pair[0] != pair[1]), None)
            raise ResilientError(
                "The ranks built different models.",
                received=f"rank {rank} holds {len(theirs)} tensors, rank 0 "
                f"{len(everyones[0])}"
                + (f"; the first others: {other[0]}, {other[1]}" if other else ""),
                hint="Let every rank build the same model, on the same kind of device.",
            )


def _broadcast(tensors: Sequence[torch.Tensor], group: Any) -> None:
    parts = [t.contiguous().view(-1).view(torch.uint8) for t in tensors]
    flat = torch.cat(parts)
    distributed.broadcast(flat, 0, group=group)
    if distributed.get_rank(group) == 0:
        return
    with torch.no_grad():
        arrived = flat.split([part.numel() for part in parts])
        for tensor, part in zip(tensors, arrived, strict=True):
            tensor.copy_(part.clone().view(tensor.dtype).view(tensor.shape))
