"""PyTorch: written with ``torch.save``, a flat dict of CPU tensors in ``state.pt``.

``torch.load(directory / "state.pt", weights_only=True)`` reads it. Later saves repeat
the first, see ``repeated_write``. Several ranks write another format, see
``dcp_format``.

A snapshot is a copy, made by several threads, into the memory of the one before, which
is pinned for tensors of CUDA devices. Of a tensor that is spread over ranks (a DTensor)
it has the rank's part.

Refuses sparse, quantized and meta tensors.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, BinaryIO, ClassVar

import keras
import numpy as np
import torch
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils.serialization import config

from resilient.backends import dcp_chunks, dcp_format, torch_files, torch_random
from resilient.backends.arrays import (
    EXTENSION_DTYPES,
    HeldSnapshot,
    as_stored,
    check_count,
    check_dtype,
    check_like,
    check_names,
    dtype_name,
)
from resilient.backends.base import ALONE, Backend, Part, Snapshot
from resilient.backends.dcp_chunks import StoredTensor
from resilient.backends.parallel_copy import copy_all
from resilient.backends.repeated_write import RepeatedWrite
from resilient.backends.stored_files import Listed, StoredFiles
from resilient.errors import NotSupportedError

_SMALL = 1 << 14  # bytes of a tensor, which torch copies in one piece
_BUFFER = 1 << 16  # bytes; torch.save makes hundreds of small writes

_repeated = RepeatedWrite(torch_files.places)

# torch and numpy exchange these as integers of the same width.
_CARRIERS = {
    "bfloat16": (torch.int16, np.int16),
    "float8_e4m3fn": (torch.int8, np.int8),
    "float8_e5m2": (torch.int8, np.int8),
}


class TorchBackend:
    """The adapter of PyTorch."""

    name: ClassVar[str] = "torch"
    divides: ClassVar[bool] = True
    compares: ClassVar[str] = ""

    def snapshot(
        self, tensors: Mapping[str, Any], reuse: Snapshot | None = None
    ) -> Snapshot:
        check_names(tensors)
        live = {name: _live(name, value) for name, value in tensors.items()}
        free = reuse.held if isinstance(reuse, _Copies) else {}
        spread = {
            name: _part_room(reuse, name, value)
            for name, value in live.items()
            if isinstance(value, DTensor)
        }
        live |= {name: live[name].to_local() for name in spread}
        held = {
            name: spread[name].to_local()
            if name in spread
            else _room(free.get(name), value)
            for name, value in live.items()
        }
        pairs = []
        for name, value in live.items():
            if value.nbytes > _SMALL and _is_plain(value):
                pairs.append((to_numpy(held[name]), to_numpy(value)))
            else:
                held[name].copy_(value, non_blocking=value.is_cuda)
        copy_all(pairs)  # while those of other devices are transferred
        for device in {value.device for value in live.values() if value.is_cuda}:
            torch.cuda.synchronize(device)
        return _Copies(held, partial(_write, spread), to_numpy, spread=spread)

    def read(
        self,
        directory: str,
        part: Part = ALONE,
        *,
        files: Mapping[str, Listed] | None = None,
    ) -> dict[str, Any]:
        stored = StoredFiles(directory, files)
        if dcp_chunks.METADATA in stored.sizes:
            return dcp_chunks.read(stored, part)
        return torch_files.of_checkpoint(stored)

    def require_like(self, target: Any, value: Any) -> None:
        tensor = _tensor_for(target, value)
        check_like(target, tensor.shape, _dtype_name(tensor), value)

    def assign(self, target: Any, value: Any) -> None:
        self.require_like(target, value)
        tensor = _tensor_for(target, value)
        # Keras's `Variable.assign` of a bfloat16 array goes through float32.
        with torch.no_grad():
            if not isinstance(tensor, DTensor):
                tensor.copy_(to_torch(np.asarray(value)))
            elif isinstance(value, StoredTensor):
                # Importing it takes long, and few models are spread over ranks.
                from resilient.backends.dcp_stored import read_into

                read_into(value, tensor.detach(), to_torch)
            else:
                _assign_part(tensor, to_torch(value))

    def random_state(self) -> dict[str, Any]:
        return torch_random.random_state()

    def set_random_state(self, state: dict[str, Any]) -> None:
        torch_random.set_random_state(state)

    def check_random_state(self, state: dict[str, Any]) -> None:
        torch_random.check_random_state(state)

    def peek(self, tensor: Any, most: int) -> Callable[[], np.ndarray | None]:
        value = _live("a tensor", tensor)
        value = value.to_local() if isinstance(value, DTensor) else value
        part = value.flatten()[:: max(1, value.numel() // most)]
        held = _room(None, part)
        held.copy_(part, non_blocking=part.is_cuda)
        if not part.is_cuda:
            return lambda: to_numpy(held)
        copied = torch.cuda.Event()
        copied.record()
        return lambda: to_numpy(held) if copied.query() else None

    def versions(self) -> dict[str, str]:
        return {"torch": str(torch.__version__)}


def _tensor_for(target: Any, value: Any) -> Any:
    """What is set to a value."""
    tensor = target.value if isinstance(target, keras.Variable) else target
    if isinstance(tensor, DTensor) and value.shape == tensor.to_local().shape:
        return tensor.to_local()  # given a rank's part, or a part that is all
    return tensor


def _assign_part(tensor: DTensor, whole: torch.Tensor) -> None:
    """Set this rank's part of a tensor; other ranks are not involved."""
    mesh, placements = tensor.device_mesh, tensor.placements
    part = distribute_tensor(
        whole.to(tensor.device), mesh, placements, src_data_rank=None
    )
    tensor.to_local().copy_(part.to_local())


@dataclass
class _Copies(HeldSnapshot):
    """Copies, whose memory the next snapshot may reuse.

    Attributes:
        spread: Tensors that are spread over ranks; ``held`` has this rank's part.
    """

    spread: dict[str, DTensor] = field(default_factory=dict)

    def release(self) -> None:
        pass


def _live(name: str, value: Any) -> torch.Tensor:
    """The tensor to copy; refuses before anything is copied."""
    if isinstance(value, np.ndarray | np.generic):
        return to_torch(as_stored(name, np.asarray(value)))
    tensor = value.value if isinstance(value, keras.Variable) else value
    if (
        not isinstance(tensor, torch.Tensor)
        or tensor.layout != torch.strided
        or tensor.is_meta
    ):
        raise NotSupportedError(
            f"The tensor {name!r} has a type that a checkpoint cannot hold.",
            received=f"{type(tensor).__name__} {getattr(tensor, 'layout', '')}"
            f" on {getattr(tensor, 'device', 'no device')}",
            hint="Use dense tensors, variables and NumPy arrays.",
        )
    check_dtype(name, _dtype_name(tensor))
    return tensor.detach()


def _room(free: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    """Contiguous memory for a copy; of a view, only what it shows."""
    if free is not None and (free.shape, free.dtype) == (like.shape, like.dtype):
        return free
    if like.is_cuda:
        return torch.empty(like.shape, dtype=like.dtype, device="cpu", pin_memory=True)
    # NumPy's memory has larger pages: the first copy is twice as fast.
    name = _dtype_name(like)
    dtype = EXTENSION_DTYPES.get(name) or np.dtype(name)
    return to_torch(np.empty(tuple(like.shape), dtype))


def _part_room(reuse: Snapshot | None, name: str, like: DTensor) -> DTensor:
    """Memory for a copy of this rank's part, as a DTensor."""
    free = reuse.spread.get(name) if isinstance(reuse, _Copies) else None
    if free is not None and _layout(free) == _layout(like):
        return free
    return torch.empty_like(like, device="cpu")


def _layout(tensor: DTensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.device_mesh, tensor.placements


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether its bytes in memory are its value, in order."""
    lazy = tensor.is_conj() or tensor.is_neg()
    return tensor.device.type == "cpu" and tensor.is_contiguous() and not lazy


def _dtype_name(tensor: torch.Tensor) -> str:
    return _name_of(tensor.dtype)


@cache
def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """View a contiguous CPU tensor as a numpy array."""
    name = _dtype_name(tensor)
    if name in _CARRIERS:
        tensor = tensor.view(_CARRIERS[name][0])
    array: np.ndarray = tensor.numpy()
    return array.view(EXTENSION_DTYPES.get(name, array.dtype))


def to_torch(array: np.ndarray) -> torch.Tensor:
    """View an array as a CPU tensor, or copy it if torch cannot view it."""
    if not (array.flags.writeable and array.flags.c_contiguous):
        array = array.copy(order="C")
    name = dtype_name(array.dtype)
    if name in _CARRIERS:
        carrier = torch.from_numpy(array.view(_CARRIERS[name][1]))
        return carrier.view(getattr(torch, name))
    return torch.from_numpy(array)


def _write(
    spread: Mapping[str, DTensor],
    tensors: Mapping[str, torch.Tensor],
    directory: str,
    part: Part,
) -> None:
    check_count(len(tensors) + len(spread) * (part.count - 1))
    if part.count > 1:
        dcp_format.write({**tensors, **spread}, directory, part)
        return
    if not all(tensor.is_contiguous() for tensor in tensors.values()):
        _save(tensors, directory)
        return
    arrays = {name: to_numpy(tensor) for name, tensor in tensors.items()}
    layout = tuple((name, x.dtype, x.shape, x.stride()) for name, x in tensors.items())
    _repeated.write(layout, arrays, directory, lambda: _save(tensors, directory))


def _save(tensors: Mapping[str, torch.Tensor], directory: str) -> None:
    with open(
        os.path.join(directory, torch_files.STATE), "wb", buffering=_BUFFER
    ) as file:
        watched = _WatchedFile(file)
        try:
            # CRC-32 takes as long as writing, and the manifest has a better checksum.
            with config.patch({"save.compute_crc32": False}):
                torch.save(dict(tensors), watched)
        except RuntimeError as error:
            if watched.error is None:
                raise
            raise watched.error from error


class _WatchedFile:
    """Keeps the error of a write: torch turns a full disk into "unexpected pos"."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: bytes | memoryview) -> int:
        try:
            return self._file.write(data)  # all of it, however much
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self._file.flush()


BACKEND: Backend = TorchBackend()
