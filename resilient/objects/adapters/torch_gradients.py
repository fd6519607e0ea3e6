"""Saves gradients on PyTorch, which outlast a batch if steps accumulate them.

A step that calls ``zero_grad`` first does not need them, but we cannot see that. Which
tensors are trainable is saved as well, since a loop may unfreeze layers.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import numpy as np
import torch

from resilient.backends.torch_files import to_numpy, to_torch
from resilient.serialization import JSON
from resilient.serialization.decoding import decode
from resilient.serialization.json_values import encode
from resilient.serialization.schema import taking, well_formed
from resilient.state.variables import Leaf


class Gradients(TypedDict):
    """What ``capture`` returns: indices of variables, and encoded gradients of some."""

    trained: list[str]
    gradients: dict[str, Any]


def capture(live: Sequence[Leaf], arrays: dict[str, Any]) -> JSON:
    """Gradients and which tensors are trainable, by index among the variables."""
    tensors = {str(index): _tensor(leaf.target) for index, leaf in enumerate(live)}
    return {
        "trained": [index for index, tensor in tensors.items() if tensor.requires_grad],
        "gradients": {
            index: encode(_parts(tensor.grad), arrays, f"gradients.{index}")
            for index, tensor in tensors.items()
            if tensor.is_leaf and tensor.grad is not None
        },
    }


def restore(
    saved: JSON, live: Sequence[tuple[int, Leaf]], arrays: Mapping[str, Any]
) -> None:
    """Set what ``capture`` returned on the variables with these indices.

    Raises:
        MalformedError: It is not that.
    """
    saved = well_formed(Gradients, saved, "the gradients")
    for index, leaf in live:
        tensor = _tensor(leaf.target)
        if not tensor.is_leaf:
            continue
        if tensor.is_floating_point():
            tensor.requires_grad_(str(index) in saved["trained"])
        parts = saved["gradients"].get(str(index))
        tensor.grad = None if parts is None else _built(decode(parts, arrays), tensor)


def _tensor(target: Any) -> Any:
    return target if isinstance(target, torch.Tensor) else target.value


def _parts(gradient: torch.Tensor) -> list[Any]:
    if gradient.layout == torch.strided:
        return [_array(gradient)]
    indices, values = gradient._indices(), gradient._values()
    return [_array(indices), _array(values), gradient.is_coalesced()]


def _array(tensor: torch.Tensor) -> np.ndarray:
    return to_numpy(tensor.detach().cpu().contiguous())


def _built(parts: list[Any], like: torch.Tensor) -> torch.Tensor:
    with taking("a gradient"):
        first, *rest = parts
        indices = to_torch(first).to(like.device)
        if not rest:
            return indices.reshape(like.shape).to(like.dtype)  # the gradient itself
        values, is_coalesced = rest
        values = to_torch(values).to(like.device)
        return torch.sparse_coo_tensor(
            *(indices, values, like.shape),
            is_coalesced=bool(is_coalesced),
            check_invariants=True,
        )
