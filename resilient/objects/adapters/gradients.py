"""Gradients of PyTorch, and which tensors are trainable.

A step that calls ``zero_grad`` first does not need gradients, but we cannot see that:
they are saved, since they outlast a batch if steps accumulate them. Which tensors are
trainable is saved as well, since a loop may unfreeze layers.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from resilient.keras_internals import BACKEND
from resilient.serialization import JSON
from resilient.serialization.json_values import decode, encode
from resilient.state.variables import Leaf, place


def capture(live: Sequence[Leaf], arrays: dict[str, Any]) -> JSON:
    """Gradients and which tensors are trainable, by the places of the variables."""
    if BACKEND != "torch":
        return {}
    tensors = {place(leaf.name): _tensor(leaf) for leaf in live}
    found = {where: t.grad for where, t in tensors.items() if t.is_leaf}
    return {
        "trained": [where for where, t in tensors.items() if t.requires_grad],
        "gradients": {
            where: encode(_plain(gradient), arrays, f"gradients.{where}")
            for where, gradient in found.items()
            if gradient is not None
        },
    }


def restore(saved: JSON, live: Sequence[Leaf], arrays: Mapping[str, Any]) -> None:
    """Set what ``capture`` returned on these variables."""
    if not saved or BACKEND != "torch":
        return
    import torch

    for leaf in live:
        where, tensor = place(leaf.name), _tensor(leaf)
        if not tensor.is_leaf:
            continue
        if tensor.is_floating_point():
            tensor.requires_grad_(where in saved["trained"])
        gradient = decode(saved["gradients"].get(where), arrays)
        if isinstance(gradient, list):
            indices, values, coalesced = gradient
            gradient = torch.sparse_coo_tensor(
                *(indices, values, tensor.shape), is_coalesced=coalesced
            )
        tensor.grad = None if gradient is None else gradient.to(tensor.device)


def _tensor(leaf: Leaf) -> Any:
    target = leaf.target
    return target.value if isinstance(target, keras.Variable) else target


def _plain(gradient: Any) -> Any:
    """A gradient; of a sparse one what it consists of, and whether it is sorted."""
    if not gradient.is_sparse:
        return gradient
    return [gradient._indices(), gradient._values(), gradient.is_coalesced()]
