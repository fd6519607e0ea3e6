"""PyTorch objects: modules, tensors and optimizers.

Schedulers, gradient scalers and the like are saved through their ``state_dict``.
"""

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import torch

from resilient.errors import NotSupportedError
from resilient.objects.adapters.base import Kind, StatefulKind
from resilient.serialization.schema import taking
from resilient.state.variables import Variable


class TorchModuleKind(StatefulKind):
    """A module: its parameters, all buffers, and the result of ``get_extra_state``."""

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
        own = {id(module) for _, module in self._with_extra_state()}
        for path, module in self.value.named_modules():
            # PyTorch's wrapper differs from call to call.
            wraps = isinstance(module, torch.nn.parallel.DistributedDataParallel)
            if not wraps and id(module) not in own:
                yield path or type(module).__name__, module

    def facts(self) -> Any:
        paths = [path for path, _ in self._with_extra_state()]
        return {" modules with an extra state": paths}

    def state(self) -> Any:
        found = self._with_extra_state()
        return {path: module.get_extra_state() for path, module in found}

    def load(self, state: Any) -> None:
        for path, module in self._with_extra_state():
            module.set_extra_state(state[path])

    def _with_extra_state(self) -> Iterator[tuple[str, Any]]:
        plain = torch.nn.Module.get_extra_state
        for path, module in self.value.named_modules():
            if type(module).get_extra_state is not plain:
                yield path, module


class TensorKind(Kind):
    """A single tensor, or parameter."""

    kind: ClassVar[str] = "PyTorch tensor"

    def variables(self) -> Iterable[Variable]:
        _require_plain("tensor", self.value)
        yield "trainable", 0, "tensor", self.value


class TorchOptimizerKind(StatefulKind):
    """An optimizer, whose state exists from its first step on."""

    kind: ClassVar[str] = "PyTorch optimizer"

    def facts(self) -> Any:
        """The class, and the shapes of the parameters in each group."""
        groups = [group["params"] for group in self.value.param_groups]
        sizes = [[list(p.shape) for p in parameters] for parameters in groups]
        return [type(self.value).__name__, sizes]

    def load(self, state: Any) -> None:
        options = [set(group) for group in self.value.param_groups]
        with taking("the state of an optimizer"):
            self.value.load_state_dict(state)
            for before, group in zip(options, self.value.param_groups, strict=True):
                if lost := before - set(group):
                    raise ValueError(f"it has no {', '.join(sorted(lost))}")
            self._undo_casts(state["state"])

    def _undo_casts(self, state: Any) -> None:
        """Set the tensors that loading cast to the dtypes of the parameters."""
        parameters = [p for group in self.value.param_groups for p in group["params"]]
        for index, values in state.items():
            loaded = self.value.state[parameters[index]]
            for key, value in values.items():
                if isinstance(value, torch.Tensor):
                    loaded[key] = value.to(loaded[key].device)


def _require_plain(path: str, tensor: Any) -> None:
    """Raise for tensors that are lazy, sharded or not writable."""
    if isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):
        why = "it has no values yet"
        todo = "Call the module on a batch before you create the run."
    elif hasattr(tensor, "full_tensor"):
        why = "it is sharded"
        todo = "Train with DistributedDataParallel."
    elif any(
        n > 1 and not s for n, s in zip(tensor.shape, tensor.stride(), strict=True)
    ):
        why = "its elements share memory (expand)"
        todo = "Make it contiguous."
    else:
        return
    raise NotSupportedError(
        f"The tensor {path!r} cannot be restored.",
        received=f"{type(tensor).__name__}: {why}",
        hint=todo,
    )


KINDS: dict[type, type[Kind]] = {
    torch.nn.Module: TorchModuleKind,
    torch.Tensor: TensorKind,
    torch.optim.Optimizer: TorchOptimizerKind,
}
