"""Reads and writes safetensors files, which hold tensors by name.

The names are the paths of the variables. No Keras is loaded.
"""

import importlib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType

import numpy as np

from resilient.backends.arrays import EXTENSION_DTYPES
from resilient.errors import BackendNotAvailableError, NotSupportedError

Tensors = Mapping[str, np.ndarray]

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


def read_safetensors(path: Path) -> Tensors:
    """Read a safetensors file."""
    # Not `safetensors.numpy`, which lacks the extension types.
    content = _library("safetensors").deserialize(path.read_bytes())
    return {
        name: np.frombuffer(each["data"], _DTYPES[each["dtype"]]).reshape(each["shape"])
        for name, each in content
    }


def write_safetensors(path: Path, tensors: Tensors, notes: Mapping[str, str]) -> None:
    """Write arrays, which are in C order; the notes become the file's metadata.

    Raises:
        NotSupportedError: The format cannot hold a tensor.
    """
    save_file = _library("safetensors.numpy").save_file
    for name, tensor in tensors.items():
        if tensor.dtype == np.complex128:
            raise NotSupportedError(
                "safetensors cannot hold this dtype, and values are not converted.",
                received=f"{name}: {tensor.dtype}",
                hint="Read the checkpoint itself with its backend's library.",
            )
    save_file(dict(tensors), path, metadata=dict(notes))


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


def _library(name: str) -> ModuleType:
    """Import what reads or writes the format.

    Raises:
        BackendNotAvailableError: It is not installed; the message says how to get it.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise BackendNotAvailableError(
            f"This format needs {name}, which cannot be imported.",
            received=f"{type(error).__name__}: {error}",
            hint="Install it with: pip install safetensors",
            name=error.name,
        ) from error
