"""Files that hold tensors by name: safetensors, and what torch saves of a dict.

The names are the paths of the variables. No Keras is loaded.
"""

import importlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType

import numpy as np

from resilient.backends.arrays import EXTENSION_DTYPES
from resilient.errors import BackendNotAvailableError, NotSupportedError

Tensors = Mapping[str, np.ndarray]

# Keras's layers keep their parameters under this name, and paths in it; models list
# those of layers once more.
_KERAS = "_torch_params."
_EXTENSIONS = {
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}


def read_safetensors(path: Path) -> Tensors:
    """Read a safetensors file."""
    # Not `safetensors.numpy`, which lacks the extension types.
    content = library("safetensors", "safetensors").deserialize(path.read_bytes())
    return {
        name: np.frombuffer(each["data"], _dtype(each["dtype"])).reshape(each["shape"])
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
                "safetensors has no such type, and nothing is cast.",
                received=f"{name}: {tensor.dtype}",
                hint="Read the checkpoint itself, with the library of its backend.",
            )
    save_file(dict(tensors), path, metadata=dict(notes))


def read_torch(path: Path) -> Tensors:
    """Read a ``state_dict`` that torch saved."""
    torch = library("torch", '"keras-resilient[torch]"')
    from resilient.backends.torch import to_numpy

    content = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(content, dict) or not all(
        isinstance(each, torch.Tensor) for each in content.values()
    ):
        raise NotSupportedError(
            "This file of torch holds something other than a dict of tensors.",
            received=path,
            hint="Save model.state_dict() alone, and import that.",
        )
    tensors: dict[str, np.ndarray] = {}
    for name, tensor in content.items():
        key = str(name).rpartition(_KERAS)[2]
        array = to_numpy(tensor.detach().contiguous())
        if key in tensors and tensors[key].tobytes() != array.tobytes():
            raise NotSupportedError(
                "Two tensors with different values are of one variable.",
                received=f"{path}: {key}",
                hint="Give each variable of the model a name of its own.",
            )
        tensors[key] = array
    return tensors


def unique_names(paths: Iterable[str]) -> list[str]:
    """A name for each path: the path, with a number where it is taken."""
    names: list[str] = []
    for path in paths:
        name, number = path, 1
        while name in names:
            number += 1
            name = f"{path}_{number}"
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


def _dtype(name: str) -> np.dtype:
    """The type that safetensors calls ``F32``, ``BOOL``, ``BF16`` and so on."""
    if name in _EXTENSIONS:
        return EXTENSION_DTYPES[_EXTENSIONS[name]]
    if name == "BOOL":
        return np.dtype(bool)
    return np.dtype(f"<{name[0].lower()}{int(name[1:]) // 8}")
