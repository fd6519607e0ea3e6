"""PyTorch objects: modules, tensors and optimizers; and gradients.

Schedulers, gradient scalers and the like are saved through their ``state_dict``.

A step that calls ``zero_grad`` first does not need gradients, but we cannot see that:
they are saved, since they outlast a batch if steps accumulate them. Which tensors are
trainable is saved as well, since a loop may unfreeze layers.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from resilient.backends.torch_files import to_numpy, to_torch
from resilient.errors import NotSupportedError
from resilient.objects.adapters.base import Kind, StatefulKind
from resilient.serialization import JSON
from resilient.serialization.decoding import decode
from resilient.serialization.json_values import encode
from resilient.serialization.schema import taking
from resilient.state.place import place
from resilient.state.variables import Leaf, Variable


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


def capture_gradients(live: Sequence[Leaf], arrays: dict[str, Any]) -> JSON:
    """Gradients and which tensors are trainable, by the places of the variables."""
    tensors = {place(leaf.name): _tensor(leaf.target) for leaf in live}
    return {
        "trained": [where for where, tensor in tensors.items() if tensor.requires_grad],
        "gradients": {
            where: encode(_parts(tensor.grad), arrays, f"gradients.{where}")
            for where, tensor in tensors.items()
            if tensor.is_leaf and tensor.grad is not None
        },
    }


def restore_gradients(
    saved: JSON, live: Sequence[Leaf], arrays: Mapping[str, Any]
) -> None:
    """Set what ``capture_gradients`` returned on these variables.

    Raises:
        MalformedError: It is not that.
    """
    with taking("the gradients"):
        trained, gradients = set(saved["trained"]), saved["gradients"]
        for leaf in live:
            where, tensor = place(leaf.name), _tensor(leaf.target)
            if not tensor.is_leaf:
                continue
            if tensor.is_floating_point():
                tensor.requires_grad_(where in trained)
            parts = gradients.get(where)
            new = None if parts is None else _built(decode(parts, arrays), tensor)
            tensor.grad = new


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
    """The gradient with these parts: itself, or those of a sparse one."""
    first, *rest = parts
    indices = to_torch(first).to(like.device)
    if not rest:
        return indices.reshape(like.shape).to(like.dtype)
    values, is_coalesced = rest
    values = to_torch(values).to(like.device)
    return torch.sparse_coo_tensor(
        *(indices, values, like.shape),
        is_coalesced=bool(is_coalesced),
        check_invariants=True,
    )


KINDS: dict[type, type[Kind]] = {
    torch.nn.Module: TorchModuleKind,
    torch.Tensor: TensorKind,
    torch.optim.Optimizer: TorchOptimizerKind,
}
