"""PyTorch: written with ``torch.save``, see ``torch_files``.

A snapshot is a copy, made by several threads, into the memory of the one before, which
is pinned for tensors of CUDA devices. Of a tensor that is spread over ranks (a DTensor)
it has the rank's part.

Refuses sparse, quantized and meta tensors.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import keras
import numpy as np
import torch
import xxhash
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from resilient.backends import torch_files
from resilient.backends.arrays import (
    EXTENSION_DTYPES,
    as_bytes,
    as_stored,
    check_like,
    check_stored,
    not_stored,
)
from resilient.backends.base import Backend, HeldTensors, Part, Peeked
from resilient.backends.parallel_copy import copy_all
from resilient.backends.torch_files import name_of, piece_name, to_numpy, to_torch
from resilient.backends.torch_random import TorchGenerators
from resilient.errors import NotSupportedError

_SMALL = 1 << 14  # bytes of a tensor, which torch copies in one piece


class TorchBackend(TorchGenerators):
    """The adapter of PyTorch."""

    name: ClassVar[str] = "torch"
    spreads: ClassVar[bool] = True

    def snapshot(
        self, tensors: Mapping[str, Any], reuse: HeldTensors | None = None
    ) -> HeldTensors:
        live = _values(tensors)
        free = reuse.held if isinstance(reuse, _Copies) else {}
        spread = {
            name: _Spread.of(name, value)
            for name, value in live.items()
            if isinstance(value, DTensor)
        }
        live |= {name: live[name].to_local() for name in spread}
        held = {name: _room(free.get(name), value) for name, value in live.items()}
        pairs = []
        for name, value in live.items():
            if value.nbytes > _SMALL and _is_plain(value):
                pairs.append((to_numpy(held[name]), to_numpy(value)))
            else:
                held[name].copy_(value, non_blocking=value.is_cuda)
        copy_all(pairs)  # while those of other devices are transferred
        for device in {value.device for value in live.values() if value.is_cuda}:
            torch.cuda.synchronize(device)
        return _Copies(held, spread)

    def require_like(self, target: Any, value: Any) -> None:
        tensor = _tensor_for(target, value)
        check_like(target, tensor.shape, name_of(tensor.dtype), value)

    def assign(self, target: Any, value: Any) -> None:
        self.require_like(target, value)
        tensor = _tensor_for(target, value)
        # Keras's `Variable.assign` of a bfloat16 array goes through float32.
        with torch.no_grad():
            if not isinstance(tensor, DTensor):
                tensor.copy_(to_torch(np.asarray(value)))
                return
            mine = value[_Spread.of("a tensor", tensor).index]
            tensor.to_local().copy_(to_torch(mine))

    def peek(self, tensors: Mapping[str, Any], most: int) -> Peeked:
        held, copied = [], []
        for value in _values(tensors).values():
            mine = value.to_local() if isinstance(value, DTensor) else value
            part = mine.flatten()[:: max(1, mine.numel() // most)]
            held.append(_room(None, part).copy_(part, non_blocking=part.is_cuda))
            if part.is_cuda:
                copied.append(torch.cuda.current_stream(part.device).record_event())

        def read() -> list[np.ndarray] | None:
            ready = all(each.query() for each in copied)
            return [to_numpy(each) for each in held] if ready else None

        return read

    def keep_compiled(self) -> None:
        return None

    def versions(self) -> dict[str, str]:
        return {"torch": str(torch.__version__)}


def _tensor_for(target: Any, value: Any) -> Any:
    """What is set to a value."""
    tensor = target.value if isinstance(target, keras.Variable) else target
    if isinstance(tensor, DTensor) and value.shape == tensor.to_local().shape:
        return tensor.to_local()  # given a rank's part, or a part that is all
    return tensor


@dataclass(frozen=True)
class _Spread:
    """How a tensor is spread over ranks; nothing here waits for another rank.

    Attributes:
        shape: Of the whole tensor.
        mesh: The ranks.
        placements: For each dimension of the mesh, what is cut along it.
    """

    shape: tuple[int, ...]
    mesh: DeviceMesh
    placements: tuple[Any, ...]

    @classmethod
    def of(cls, name: str, tensor: DTensor) -> "_Spread":
        """The layout of a tensor.

        Raises:
            NotSupportedError: It is neither cut in order nor in replicas.
        """
        if not {type(each) for each in tensor.placements} <= {Shard, Replicate}:
            raise NotSupportedError(
                f"The tensor {name!r} is spread over ranks in an unknown way.",
                received=str(tensor.placements),
                hint="Use Shard and Replicate.",
            )
        return cls(tuple(tensor.shape), tensor.device_mesh, tuple(tensor.placements))

    @cached_property
    def index(self) -> tuple[slice, ...]:
        """The part of this rank."""
        return tuple(self._along(dimension) for dimension in range(len(self.shape)))

    def piece(self, name: str) -> str:
        """The name of this rank's part of the tensor; others may have the same."""
        return piece_name(name, [each.start for each in self.index])

    def _along(self, dimension: int) -> slice:
        """What torch gives this rank of the numbers along a dimension."""
        placements = [
            Shard(0) if each.is_shard(dimension) else Replicate()
            for each in self.placements
        ]
        numbers = torch.arange(self.shape[dimension], device=self.mesh.device_type)
        found = distribute_tensor(numbers, self.mesh, placements, src_data_rank=None)
        mine = found.to_local()
        return slice(int(mine[0]), int(mine[-1]) + 1) if len(mine) else slice(0, 0)

    def is_owned(self) -> bool:
        """Whether this rank is the first of those that have the same part."""
        coordinate = self.mesh.get_coordinate()
        return coordinate is not None and not any(
            at
            for at, placement in zip(coordinate, self.placements, strict=True)
            if placement.is_replicate()
        )


class _Copies(HeldTensors):
    """Copies, whose memory the next snapshot may reuse.

    Args:
        held: The copies; of a tensor that is spread over ranks, this rank's part.
        spread: How those are spread.
    """

    def __init__(
        self, held: dict[str, torch.Tensor], spread: dict[str, _Spread]
    ) -> None:
        super().__init__(held)
        self.spread = spread

    def _view(self, held: torch.Tensor) -> np.ndarray:
        return to_numpy(held)

    def _write(self, held: Mapping[str, Any], directory: str, part: Part) -> list[str]:
        found: dict[str, torch.Tensor] = {}
        for name, tensor in held.items():
            spread = self.spread.get(name)
            if spread is None and (not part.index or name in part.own):
                found[name] = tensor
            elif spread is not None and spread.is_owned() and tensor.numel():
                found[spread.piece(name)] = tensor
        return [torch_files.write(found, directory, part)]

    def digests(self, part: Part) -> dict[str, str]:
        if part.count == 1:
            return {}
        digests: dict[str, Any] = {}
        for name in sorted(self.held.keys() - part.own):
            spread, tensor = self.spread.get(name), self.held[name]
            if spread is not None and not tensor.numel():
                continue  # it begins where another rank's part does
            piece = "whole" if spread is None else spread.piece(name)
            digest = digests.setdefault(piece, xxhash.xxh3_128())
            digest.update(as_bytes(to_numpy(tensor)).data)
        return {piece: digest.hexdigest() for piece, digest in digests.items()}

    def release(self) -> None:
        pass


def _values(tensors: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors to copy; refuses before anything is copied."""
    values = {name: _value(name, tensor) for name, tensor in tensors.items()}
    check_stored({name: name_of(value.dtype) for name, value in values.items()})
    return values


def _value(name: str, value: Any) -> torch.Tensor:
    if isinstance(value, np.ndarray | np.generic):
        return to_torch(as_stored(name, np.asarray(value)))
    tensor = value.value if isinstance(value, keras.Variable) else value
    if (
        not isinstance(tensor, torch.Tensor)
        or tensor.layout != torch.strided
        or tensor.is_meta
    ):
        layout, device = (getattr(tensor, each, "") for each in ("layout", "device"))
        raise not_stored(name, f"{type(tensor).__name__} {layout} {device}".rstrip())
    return tensor.detach()


def _room(free: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    """Contiguous memory for a copy; of a view, only what it shows."""
    if free is not None and (free.shape, free.dtype) == (like.shape, like.dtype):
        return free
    if like.is_cuda:
        return torch.empty(like.shape, dtype=like.dtype, device="cpu", pin_memory=True)
    # NumPy's memory has larger pages: the first copy is twice as fast.
    name = name_of(like.dtype)
    dtype = EXTENSION_DTYPES.get(name) or np.dtype(name)
    return to_torch(np.empty(tuple(like.shape), dtype))


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether its bytes in memory are its value, in order."""
    lazy = tensor.is_conj() or tensor.is_neg()
    return tensor.device.type == "cpu" and tensor.is_contiguous() and not lazy


BACKEND: Backend = TorchBackend()
