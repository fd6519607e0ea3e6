"""Reads files that hold tensors by name: safetensors, and dicts saved by torch.

The names are the paths of the variables. No Keras is loaded.
"""

import importlib
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType

import numpy as np

from resilient.backends import torch_files
from resilient.backends.arrays import EXTENSION_DTYPES
from resilient.backends.stored_files import Listed, StoredFiles
from resilient.errors import BackendNotAvailableError, NotSupportedError

Tensors = Mapping[str, np.ndarray]

# Keras's layers keep their parameters under this name, and paths in it; models list
# those of layers once more.
_KERAS = "_torch_params."
_METADATA = "__metadata__"  # where safetensors has its notes
# What safetensors calls the types that a checkpoint can hold.
_DTYPES = {
    "BF16": EXTENSION_DTYPES["bfloat16"],
    "F8_E4M3": EXTENSION_DTYPES["float8_e4m3fn"],
    "F8_E5M2": EXTENSION_DTYPES["float8_e5m2"],
    "BOOL": np.dtype(bool),
    "C64": np.dtype("<c8"),
    **{f"F{bits}": np.dtype(f"<f{bits // 8}") for bits in (16, 32, 64)},
    **{f"I{bits}": np.dtype(f"<i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"U{bits}": np.dtype(f"<u{bits // 8}") for bits in (8, 16, 32, 64)},
}


def contents(path: Path) -> memoryview:
    """The bytes of a regular file, which a link may lead to."""
    where = path.resolve()
    listed = {where.name: Listed(where.stat().st_size)}
    return StoredFiles(os.fspath(where.parent), listed).mapped(where.name)


def read_safetensors(path: Path) -> Tensors:
    """Read a safetensors file."""
    # Not `safetensors.numpy`, which lacks the extension types.
    content = library("safetensors", "safetensors").deserialize(bytes(contents(path)))
    return {
        name: np.frombuffer(each["data"], _DTYPES[each["dtype"]]).reshape(each["shape"])
        for name, each in content
    }


def write_safetensors(path: Path, tensors: Tensors, notes: Mapping[str, str]) -> None:
    """Write arrays, which are in C order; the notes become the file's metadata.

    Raises:
        NotSupportedError: The format cannot hold a tensor.
    """
    save_file = library("safetensors.numpy", "safetensors").save_file
    for name, tensor in tensors.items():
        if tensor.dtype == np.complex128:
            raise NotSupportedError(
                "safetensors cannot hold this dtype, and values are not converted.",
                received=f"{name}: {tensor.dtype}",
                hint="Read the checkpoint itself with its backend's library.",
            )
    save_file(dict(tensors), path, metadata=dict(notes))


def read_torch(path: Path) -> Tensors:
    """Read a ``state_dict`` saved by torch: a dict of tensors, nothing else."""
    try:
        found = torch_files.tensors(contents(path))
    except torch_files.TorchFileError as error:
        raise NotSupportedError(
            "This is not a plain dict of tensors saved by torch.",
            received=f"{path}: {error}",
            hint="Save model.state_dict() alone, and import that.",
        ) from None
    tensors: dict[str, np.ndarray] = {}
    copied = sum(each.nbytes for each in found.values() if not each.flags.c_contiguous)
    if copied > path.stat().st_size:
        raise NotSupportedError(
            "These tensors are larger than the file.",
            received=f"{path}: many transposed views of the same bytes",
            hint="Save model.state_dict() alone, and import that.",
        )
    for name, tensor in found.items():
        key, array = name.rpartition(_KERAS)[2], np.ascontiguousarray(tensor)
        if key in tensors and tensors[key].tobytes() != array.tobytes():
            raise NotSupportedError(
                "Two tensors for the same variable have different values.",
                received=f"{path}: {key}",
                hint="Give each variable of the model its own name.",
            )
        tensors[key] = array.reshape(tensor.shape)
    return tensors


def unique_names(paths: Iterable[str]) -> list[str]:
    """A name for each path: the path, with a number where it is taken."""
    taken, last, names = {_METADATA}, Counter[str](), list[str]()
    for path in paths:
        name = path
        while name in taken:
            last[path] += 1
            name = f"{path}_{last[path] + 1}"
        taken.add(name)
        names.append(name)
    return names


def library(name: str, package: str) -> ModuleType:
    """Import what reads or writes a format.

    Raises:
        BackendNotAvailableError: It is not installed; the message says how to get it.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise BackendNotAvailableError(
            f"This format needs {name}, which cannot be imported.",
            received=f"{type(error).__name__}: {error}",
            hint=f"Install it with: pip install {package}",
            name=error.name,
        ) from error
