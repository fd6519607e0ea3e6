"""Averages all ranks' gradients in one collective after the backward pass.

The layout of the sum depends only on the variables. It decides the order in which ranks
are added, so equal layouts give equal bytes, on all ranks and in every run.

It refuses gradients whose mean differs from what one process would compute, and ranks
that are not at the same step.
"""

from collections.abc import Sequence
from typing import Any

import torch
import xxhash
from torch import distributed

from resilient.errors import NotSupportedError

Gradients = Sequence[torch.Tensor | None]


class Averages:
    """Averages the gradients of one optimizer.

    Args:
        name: The optimizer's name, the same on all ranks.
        host: A group of all ranks that communicates through host memory.
    """

    def __init__(self, name: str, host: Any) -> None:
        self._name, self._host = name, host
        self._world = distributed.get_world_size()
        self._layout: list[Any] | None = None
        self._mark = 0
        # One flat tensor for each dtype and device, and a view of it per variable.
        # Kept, because allocating them took a tenth of a step.
        self._flat: list[torch.Tensor] = []
        self._views: list[torch.Tensor] = []

    def __call__(
        self, gradients: Gradients, variables: Sequence[Any]
    ) -> list[torch.Tensor | None]:
        """The averages. A gradient that only some ranks have is zero on the others.

        The next call overwrites them. None if no rank has a gradient.

        Raises:
            NotSupportedError: A gradient cannot be averaged, or the ranks are not at
                the same step.
        """
        tensors = [tensor_of(variable) for variable in variables]
        _require_averageable(gradients, tensors, variables)
        self._lay_out(tensors)
        present = self._present(gradients)
        for gradient, view in zip(gradients, self._views, strict=True):
            if gradient is None:
                view.zero_()
            else:
                torch.div(gradient.detach(), self._world, out=view)
        for flat in self._flat:
            distributed.all_reduce(flat)
        return [
            view if is_present else None
            for view, is_present in zip(self._views, present, strict=True)
        ]

    def _lay_out(self, tensors: Sequence[torch.Tensor]) -> None:
        """Allocate buffers for gradients of these variables, unless done."""
        layout = [(tuple(t.shape), t.dtype, t.device) for t in tensors]
        if layout == self._layout:
            return
        self._layout = layout
        text = repr((self._name, [(shape, dtype) for shape, dtype, _ in layout]))
        self._mark = xxhash.xxh3_64_intdigest(text.encode()) >> 1  # fits into an int64
        self._flat, self._views = [], [torch.empty(0)] * len(tensors)
        places: dict[Any, list[int]] = {}
        for place, (_, *kind) in enumerate(layout):
            places.setdefault(tuple(kind), []).append(place)
        for (dtype, device), together in places.items():
            sizes = [tensors[place].numel() for place in together]
            flat = torch.empty(sum(sizes), dtype=dtype, device=device)
            self._flat.append(flat)
            for place, part in zip(together, flat.split(sizes), strict=True):
                self._views[place] = part.view(tensors[place].shape)

    def _present(self, gradients: Gradients) -> list[bool]:
        """For each variable, whether some rank has a gradient.

        Raises:
            NotSupportedError: The ranks apply gradients of different variables.
        """
        present = [gradient is not None for gradient in gradients]
        facts = self._maximum([self._mark, -self._mark, not all(present)])
        highest, lowest, some_missing = facts[0], -facts[1], facts[2]
        if highest != lowest:
            raise NotSupportedError(
                "The ranks are not at the same step: they apply gradients of "
                "different variables or optimizers.",
                received=f"on this rank {len(gradients)} gradients for {self._name}",
                hint="Make every rank take the same steps on the same model.",
            )
        return list(map(bool, self._maximum(present))) if some_missing else present

    def _maximum(self, numbers: Sequence[int]) -> list[int]:
        """The elementwise maximum over all ranks."""
        highest = torch.tensor(numbers, dtype=torch.int64)
        distributed.all_reduce(highest, distributed.ReduceOp.MAX, group=self._host)
        found: list[int] = highest.tolist()
        return found


def tensor_of(variable: Any) -> torch.Tensor:
    """The tensor of a Keras variable itself; `value` may have been cast."""
    tensor: torch.Tensor = getattr(variable, "_value", variable)
    return tensor


def _require_averageable(
    gradients: Gradients, tensors: Sequence[torch.Tensor], variables: Sequence[Any]
) -> None:
    """Raise if an average would differ from what one process computes."""
    for gradient, tensor, variable in zip(gradients, tensors, variables, strict=True):
        wrong = ""
        if getattr(variable, "overwrite_with_gradient", False):
            wrong = "a value that overwrites the variable, instead of a gradient"
        elif gradient is None:
            continue
        elif gradient.layout != torch.strided:
            wrong = f"a gradient of layout {gradient.layout}"
        elif (gradient.shape, gradient.dtype) != (tensor.shape, tensor.dtype):
            wrong = f"a gradient of {tuple(gradient.shape)} {gradient.dtype}"
        if wrong:
            path = getattr(variable, "path", "a tensor")
            raise NotSupportedError(
                "This gradient cannot be averaged over several processes.",
                received=f"{wrong}, for {path} ({tuple(tensor.shape)} {tensor.dtype})",
                hint="Use dense gradients of the variable's dtype (for a torch "
                "embedding, sparse=False), or train in one process.",
            )
