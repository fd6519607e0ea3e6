"""torch's files of tensors, ``state.pt``: flat dicts that ``torch.save`` writes.

``torch.load(directory / "state.pt", weights_only=True)`` reads one. Of several ranks,
each has a file of its own. A tensor that is spread over them is in pieces, named by
their place in it: ``kernel@0.512`` begins in row 0, column 512.

    state.pt            what all ranks have, and what rank 0 has
    process-1-of-2.pt   what rank 1 has of its own, and its pieces
"""

import math
import os
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import torch
from torch.utils.serialization import config

from resilient.backends.arrays import EXTENSION_DTYPES, dtype_name
from resilient.backends.base import Part
from resilient.backends.stored import StoredTensor, corrupt

_STATE = "state.pt"
_AT = "@"  # in no tensor's name
_BUFFER = 1 << 16  # bytes; torch.save makes hundreds of small writes

# torch and numpy exchange these as integers of the same width.
_CARRIERS = {
    "bfloat16": (torch.int16, np.int16),
    "float8_e4m3fn": (torch.int8, np.int8),
    "float8_e5m2": (torch.int8, np.int8),
}


def piece_name(name: str, offsets: Sequence[int]) -> str:
    """The name of the piece of a tensor that begins there."""
    return f"{name}{_AT}{'.'.join(map(str, offsets))}"


def write(tensors: Mapping[str, torch.Tensor], directory: str, part: Part) -> str:
    """Write the tensors and pieces of a rank, on the CPU; return the file's name."""
    name = _file(part.index, part.count)
    with open(os.path.join(directory, name), "wb", buffering=_BUFFER) as file:
        try:
            # CRC-32 takes as long as writing, and the manifest has a better checksum.
            with config.patch({"save.compute_crc32": False}):
                torch.save(dict(tensors), file)
        except RuntimeError as error:  # torch turns a full disk into "unexpected pos"
            if isinstance(error.__context__, OSError):
                raise error.__context__ from error
            raise
    return name


def read(
    directory: str, part: Part, *, lazy: bool
) -> dict[str, np.ndarray | StoredTensor]:
    """Arrays in mapped files, lazy or not: bytes are read where somebody uses them."""
    found: dict[str, np.ndarray | StoredTensor] = {}
    pieces: dict[str, dict[tuple[int, ...], np.ndarray]] = {}
    for index in range(part.count):
        for key, array in _read(directory, _file(index, part.count)).items():
            name, cut, offsets = key.partition(_AT)
            if cut:
                at = tuple(map(int, filter(None, offsets.split("."))))
                pieces.setdefault(name, {})[at] = array
            elif index in (0, part.index):
                found[name] = array
    return found | {name: _joined(name, each) for name, each in pieces.items()}


def _file(index: int, count: int) -> str:
    return f"{Part(index, count).name}.pt" if index else _STATE


def _read(directory: str, name: str) -> dict[str, np.ndarray]:
    loaded = torch.load(os.path.join(directory, name), weights_only=True, mmap=True)
    return {key: to_numpy(tensor) for key, tensor in loaded.items()}


def _joined(name: str, pieces: Mapping[tuple[int, ...], np.ndarray]) -> StoredTensor:
    """The tensor that pieces make up."""
    ends = [np.add(at, piece.shape) for at, piece in pieces.items()]
    shape = tuple(int(end) for end in np.max(ends, axis=0))
    (dtype,) = {piece.dtype for piece in pieces.values()}
    if sum(piece.size for piece in pieces.values()) != math.prod(shape):
        raise corrupt(f"pieces of {name} are missing")

    def load(index: tuple[slice, ...]) -> np.ndarray:
        wanted = [each.indices(size) for each, size in zip(index, shape, strict=True)]
        part = np.empty([stop - start for start, stop, _ in wanted], dtype)
        for at, piece in pieces.items():
            begin = [max(a, start) for a, (start, _, _) in zip(at, wanted, strict=True)]
            end = [
                min(a + size, stop)
                for a, size, (_, stop, _) in zip(at, piece.shape, wanted, strict=True)
            ]
            if all(map(int.__lt__, begin, end)):
                there = [start for start, _, _ in wanted]
                part[_box(begin, end, there)] = piece[_box(begin, end, at)]
        return part

    return StoredTensor(shape, dtype, load)


def _box(
    begin: Sequence[int], end: Sequence[int], origin: Sequence[int]
) -> tuple[slice, ...]:
    """The elements from ``begin`` to ``end``, of what begins at ``origin``."""
    each = zip(begin, end, origin, strict=True)
    return tuple(slice(first - at, last - at) for first, last, at in each)


@cache
def name_of(dtype: torch.dtype) -> str:
    """The dtype's name without ``torch.``."""
    return str(dtype).removeprefix("torch.")


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """View a contiguous CPU tensor as a numpy array."""
    name = name_of(tensor.dtype)
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
