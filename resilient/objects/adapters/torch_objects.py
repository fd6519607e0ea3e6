"""PyTorch objects: modules, tensors and optimizers.

Schedulers, gradient scalers and the like are saved through their ``state_dict``.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, TypedDict

import torch

from resilient.errors import NotSupportedError
from resilient.objects.adapters.base import Kind, require_backend
from resilient.serialization import Encoded
from resilient.serialization.classes import NOTHING
from resilient.serialization.decoding import decode
from resilient.serialization.schema import taking
from resilient.serialization.state_dict import encoded_state, known_in
from resilient.state.variables import Variable

_Optimizer = TypedDict(
    "_Optimizer", {"class": str, "parameters": list[Any], "state": Any}
)


def kind_of(name: str, value: Any) -> Kind | None:
    """The kind of a PyTorch object; None for other objects."""
    found = next((k for cls, k in _KINDS.items() if isinstance(value, cls)), None)
    if found is None:
        return None
    require_backend("torch", name, value)
    return found(value)


class TorchModuleKind(Kind):
    """A module: its parameters, all buffers, and the result of ``get_extra_state``."""

    kind: ClassVar[str] = "PyTorch module"
    schema: ClassVar[Any] = dict[str, Any]

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self._known = {
            path: known_in(module.get_extra_state)
            for path, module in self._with_extra_state()
        }

    def variables(self) -> Iterable[Variable]:
        for index, (path, tensor) in enumerate(self.value.named_parameters()):
            _require_plain(path, tensor)
            yield "trainable", index, path, tensor
        for index, (path, tensor) in enumerate(self.value.named_buffers()):
            _require_plain(path, tensor)
            yield "non_trainable", index, path, tensor

    def parts(self) -> Iterable[tuple[str, Any]]:
        own = {id(module) for _, module in self._with_extra_state()}
        for path, module in self.value.named_modules():
            # PyTorch's wrapper differs from call to call.
            wraps = isinstance(module, torch.nn.parallel.DistributedDataParallel)
            if not wraps and id(module) not in own:
                yield path or type(module).__name__, module

    def capture(
        self, arrays: dict[str, Any], name: str, known: Mapping[int, str]
    ) -> Encoded:
        return {
            path: encoded_state(
                module.get_extra_state(),
                arrays,
                f"{name}.{index}",
                name,
                self._known.get(path, NOTHING),
            )
            for index, (path, module) in enumerate(self._with_extra_state())
        }

    def differences(self, name: str, saved: Encoded) -> list[str]:
        live = {path for path, _ in self._with_extra_state()}
        return [
            f"{name}: only one has an extra state of the module {path!r}"
            for path in sorted(live ^ set(saved))
        ]

    def restore(self, saved: Encoded, arrays: Mapping[str, Any]) -> None:
        for path, module in self._with_extra_state():
            known = self._known.get(path, NOTHING)
            module.set_extra_state(decode(saved[path], arrays, known))

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


class TorchOptimizerKind(Kind):
    """An optimizer, whose state exists from its first step on."""

    kind: ClassVar[str] = "PyTorch optimizer"
    schema: ClassVar[Any] = _Optimizer

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self._known = known_in(value.state_dict)

    def capture(
        self, arrays: dict[str, Any], name: str, known: Mapping[int, str]
    ) -> Encoded:
        return {
            "class": type(self.value).__name__,
            "parameters": self._sizes(),
            "state": encoded_state(
                self.value.state_dict(), arrays, name, name, self._known
            ),
        }

    def differences(self, name: str, saved: Encoded) -> list[str]:
        theirs = [saved["class"], saved["parameters"]]
        ours = [type(self.value).__name__, self._sizes()]
        if theirs == ours:
            return []
        return [f"{name}: the checkpoint has {theirs}, this run has {ours}"]

    def restore(self, saved: Encoded, arrays: Mapping[str, Any]) -> None:
        state = decode(saved["state"], arrays, self._known)
        with taking("the state of an optimizer"):
            self._load(state)

    def _load(self, state: Any) -> None:
        options = [set(group) for group in self.value.param_groups]
        self.value.load_state_dict(state)
        for before, group in zip(options, self.value.param_groups, strict=True):
            if lost := before - set(group):
                raise ValueError(f"it has no {', '.join(sorted(lost))}")
        # That casts loaded values to the parameters' dtypes.
        parameters = [p for group in self.value.param_groups for p in group["params"]]
        for index, values in state["state"].items():
            loaded = self.value.state[parameters[index]]
            for key, value in values.items():
                if isinstance(value, torch.Tensor):
                    loaded[key] = value.to(loaded[key].device)

    def _sizes(self) -> list[list[list[int]]]:
        """The shapes of the parameters in each group."""
        groups = self.value.param_groups
        return [[list(p.shape) for p in group["params"]] for group in groups]


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


_KINDS: dict[type, type[Kind]] = {
    torch.nn.Module: TorchModuleKind,
    torch.Tensor: TensorKind,
    torch.optim.Optimizer: TorchOptimizerKind,
}
