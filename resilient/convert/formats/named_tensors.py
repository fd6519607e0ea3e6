"""Flat files: tensors by name, byte for byte, and nothing else.

safetensors     safetensors.safe_open; the progress is in its metadata
tf              tf.train.load_checkpoint(directory).get_tensor(name)
orbax           orbax.checkpoint.PyTreeCheckpointer().restore(directory), a dict
torch           torch.load(file, weights_only=True), a dict
"""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np

from resilient.backends.base import ALONE
from resilient.backends.paths import plain
from resilient.convert.formats import Format, library
from resilient.errors import NotSupportedError

Tensors = Mapping[str, np.ndarray]

_PREFIX = "state"


def unique_names(paths: Iterable[str]) -> list[str]:
    """A name for each path: itself, or with a number where others have it, too."""
    names: list[str] = []
    for path in paths:
        name, number = path, 1
        while name in names:
            number += 1
            name = f"{path}_{number}"
        names.append(name)
    return names


def write(kind: Format, path: Path, tensors: Tensors, notes: Mapping[str, str]) -> None:
    """Write a new file or directory.

    Args:
        kind: Its format.
        path: Where.
        tensors: Arrays in C order, by name.
        notes: What else to say, where the format has room for it.

    Raises:
        NotSupportedError: The format cannot hold a tensor.
        BackendNotAvailableError: Its library is not installed.
    """
    _WRITERS[kind](path, tensors, notes)


def _write_safetensors(path: Path, tensors: Tensors, notes: Mapping[str, str]) -> None:
    library("safetensors")
    from safetensors.numpy import save_file

    for name, tensor in tensors.items():
        if tensor.dtype == np.complex128:
            raise NotSupportedError(
                "safetensors has no such type, and nothing is cast.",
                received=f"{name}: {tensor.dtype}",
                hint="Export to another format.",
            )
    save_file(dict(tensors), path, metadata=dict(notes))


def _write_torch(path: Path, tensors: Tensors, notes: Mapping[str, str]) -> None:
    torch = library("torch")
    from resilient.backends.torch import to_torch

    torch.save({name: to_torch(tensor) for name, tensor in tensors.items()}, path)


def _write_tf(path: Path, tensors: Tensors, notes: Mapping[str, str]) -> None:
    tf = library("tf")
    path.mkdir()
    with plain(os.fspath(path)) as directory, tf.device("CPU:0"):
        tf.raw_ops.SaveV2(
            prefix=os.path.join(directory, _PREFIX),
            tensor_names=list(tensors),
            shape_and_slices=[""] * len(tensors),
            tensors=[tf.constant(tensor) for tensor in tensors.values()],
        )
    # By this `tf.train.load_checkpoint` finds it, given the directory.
    text = f'model_checkpoint_path: "{_PREFIX}"\n'
    (path / "checkpoint").write_text(text, encoding="utf-8")


def _write_orbax(path: Path, tensors: Tensors, notes: Mapping[str, str]) -> None:
    library("orbax")
    from resilient.backends import orbax_format

    path.mkdir()
    orbax_format.write(tensors, os.fspath(path), ALONE)
    inner = path.with_name(f"{path.name}.{orbax_format.STATE}")
    os.rename(path / orbax_format.STATE, inner)
    os.rename(inner, path)  # which is empty


_WRITERS: dict[Format, Callable[[Path, Tensors, Mapping[str, str]], None]] = {
    "safetensors": _write_safetensors,
    "tf": _write_tf,
    "orbax": _write_orbax,
    "torch": _write_torch,
}
