"""PyTorch objects: modules, tensors and optimizers.

Schedulers, gradient scalers and the like are saved through their ``state_dict``.
"""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch

from resilient.errors import NotSupportedError
from resilient.objects.adapters.base import Kind, StatefulKind
from resilient.serialization import JSON
from resilient.state.variables import Variable


class TorchModuleKind(StatefulKind):
    """A module: its parameters, all buffers, and the results of ``get_extra_state``."""

    kind: ClassVar[str] = "PyTorch module"

    def variables(self) -> Iterable[Variable]:
        for group, found in (
            ("trainable", self.value.named_parameters()),
            ("non_trainable", self.value.named_buffers()),
        ):
            for index, (path, tensor) in enumerate(found):
                _require_plain(path, tensor)
                yield group, index, path, tensor

    def parts(self) -> Iterable[tuple[str, Any]]:
        for path, module in self.value.named_modules():
            plain = type(module).get_extra_state is torch.nn.Module.get_extra_state
            # PyTorch's wrapper differs from call to call.
            wraps = isinstance(module, torch.nn.parallel.DistributedDataParallel)
            if plain and not wraps:
                yield path or type(module).__name__, module

    def facts(self) -> JSON:
        return {" extra states": [*self.state()]}

    def state(self) -> Any:
        found = self.value.state_dict().items()
        return {name: x for name, x in found if name.endswith("_extra_state")}

    def load(self, state: Any, tensors: Mapping[str, Any]) -> None:
        if state:
            self.value.load_state_dict(state, strict=False)


class TensorKind(Kind):
    """A single tensor, or parameter."""

    kind: ClassVar[str] = "PyTorch tensor"

    def variables(self) -> Iterable[Variable]:
        _require_plain("tensor", self.value)
        yield "trainable", 0, "tensor", self.value


class TorchOptimizerKind(StatefulKind):
    """An optimizer, whose state exists from its first step on."""

    kind: ClassVar[str] = "PyTorch optimizer"

    def facts(self) -> JSON:
        """The class, and the shapes of the parameters in each group."""
        groups = [group["params"] for group in self.value.param_groups]
        sizes = [[list(p.shape) for p in parameters] for parameters in groups]
        return {"": [type(self.value).__name__, sizes]}

    def load(self, state: Any, tensors: Mapping[str, Any]) -> None:
        self.value.load_state_dict(state)
        parameters = [p for group in self.value.param_groups for p in group["params"]]
        for index, values in state["state"].items():
            loaded = self.value.state[parameters[index]]
            for key, value in values.items():
                if isinstance(value, torch.Tensor):  # loading cast it
                    loaded[key] = value.to(loaded[key].device)


def _require_plain(path: str, tensor: Any) -> None:
    """Raise for tensors that a restore could not write to."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    if hasattr(tensor, "full_tensor") or any(n > 1 and not step for n, step in steps):
        raise NotSupportedError(
            f"The tensor {path!r} cannot be restored.",
            received=f"{type(tensor).__name__}: it is sharded, or its elements share "
            "memory (expand)",
            hint="Train with DistributedDataParallel; make it contiguous.",
        )


KINDS: dict[type, type[Kind]] = {
    torch.nn.Module: TorchModuleKind,
    torch.Tensor: TensorKind,
    torch.optim.Optimizer: TorchOptimizerKind,
}
