"""PyTorch: written with ``torch.save``, a flat dict of CPU tensors in ``state.pt``.

``torch.load(directory / "state.pt", weights_only=True)`` reads it.

Refuses sparse, quantized and meta tensors.
"""

import os
import warnings
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, BinaryIO, ClassVar

import keras
import numpy as np
import torch

from resilient.backends.arrays import (
    EXTENSION_DTYPES,
    ArraySnapshot,
    check_dtype,
    check_like,
    check_names,
    copy_array,
)
from resilient.backends.base import JSON, Backend, Snapshot
from resilient.errors import NotExactWarning, NotSupportedError, describe

_FILE = "state.pt"

# torch and numpy do not exchange these: an integer of the same width carries them.
_CARRIERS = {
    "bfloat16": (torch.int16, np.int16),
    "float8_e4m3fn": (torch.int8, np.int8),
    "float8_e5m2": (torch.int8, np.int8),
}


class TorchBackend:
    """The adapter of PyTorch."""

    name: ClassVar[str] = "torch"

    def snapshot(self, tensors: Mapping[str, Any]) -> Snapshot:
        check_names(tensors)
        arrays = {name: _host_copy(name, value) for name, value in tensors.items()}
        return ArraySnapshot(arrays, _write)

    def read(self, directory: str) -> dict[str, np.ndarray]:
        path = os.path.join(directory, _FILE)
        tensors = torch.load(path, map_location="cpu", weights_only=True)
        return {name: _to_numpy(tensor) for name, tensor in tensors.items()}

    def assign(self, target: Any, value: np.ndarray) -> None:
        tensor = target.value if isinstance(target, keras.Variable) else target
        check_like(target, tensor.shape, _dtype_name(tensor), value)
        # `Variable.assign` of Keras goes through float32 for a bfloat16 array.
        with torch.no_grad():
            tensor.copy_(_to_torch(value))

    def random_state(self) -> JSON:
        devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        return {
            "cpu": encode_state(torch.get_rng_state()),
            "cuda": [encode_state(state) for state in devices],
        }

    def set_random_state(self, state: JSON) -> None:
        torch.set_rng_state(decode_state(state["cpu"]))
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if count != len(state["cuda"]):
            warnings.warn(
                f"Random numbers drawn on CUDA devices will differ: the checkpoint was "
                f"saved with {len(state['cuda'])} devices, this process has {count}.",
                NotExactWarning,
                stacklevel=2,
            )
        for index, device_state in enumerate(state["cuda"][:count]):
            torch.cuda.set_rng_state(decode_state(device_state), index)

    def versions(self) -> dict[str, str]:
        return {"torch": str(torch.__version__)}


def _host_copy(name: str, value: Any) -> np.ndarray:
    if isinstance(value, np.ndarray | np.generic):
        return copy_array(name, np.asarray(value))
    tensor = value.value if isinstance(value, keras.Variable) else value
    if (
        not isinstance(tensor, torch.Tensor)
        or tensor.layout != torch.strided
        or tensor.is_meta
    ):
        raise NotSupportedError(
            describe(
                f"The tensor {name!r} is of a kind that a checkpoint cannot hold.",
                f"{type(tensor).__name__} {getattr(tensor, 'layout', '')}"
                f" on {getattr(tensor, 'device', 'no device')}",
                "Supported are dense tensors, variables and numpy arrays.",
            )
        )
    check_dtype(name, _dtype_name(tensor))
    # One copy, whatever the device; contiguous, and of a view no more than is seen.
    host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    return _to_numpy(host.copy_(tensor.detach()))


def _dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """View a contiguous CPU tensor as a numpy array."""
    name = _dtype_name(tensor)
    if name in _CARRIERS:
        tensor = tensor.view(_CARRIERS[name][0])
    array: np.ndarray = tensor.numpy()
    return array.view(EXTENSION_DTYPES.get(name, array.dtype))


def _to_torch(array: np.ndarray) -> torch.Tensor:
    """View an array as a CPU tensor, or copy it where torch wants to own it."""
    if not (array.flags.writeable and array.flags.c_contiguous):
        array = array.copy(order="C")
    name = str(array.dtype)
    if name in _CARRIERS:
        carrier = torch.from_numpy(array.view(_CARRIERS[name][1]))
        return carrier.view(getattr(torch, name))
    return torch.from_numpy(array)


def _write(arrays: Mapping[str, np.ndarray], directory: str) -> None:
    tensors = {name: _to_torch(array) for name, array in arrays.items()}
    with open(os.path.join(directory, _FILE), "wb") as file:
        watched = _WatchedFile(file)
        try:
            torch.save(tensors, watched)
        except RuntimeError as error:
            if watched.error is None:
                raise
            raise watched.error from error


class _WatchedFile:
    """Remembers why a write failed: of a full disk torch says "unexpected pos" only."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self._file.flush()


def encode_state(state: torch.Tensor) -> str:
    """Turn a generator's state, a tensor of bytes, into text for JSON."""
    return b64encode(state.numpy().tobytes()).decode("ascii")


def decode_state(text: str) -> torch.Tensor:
    """Turn what ``encode_state`` returned into a generator's state again."""
    return torch.frombuffer(bytearray(b64decode(text)), dtype=torch.uint8)


BACKEND: Backend = TorchBackend()
