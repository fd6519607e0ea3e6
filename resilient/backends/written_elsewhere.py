"""Reads the tensors that one process wrote with another backend, without that backend.

Nothing is imported but readers of the formats; of these only Orbax's needs a library,
TensorStore. What several processes wrote together is read with their own backend only.
"""

import os
from collections.abc import Mapping

import numpy as np

from resilient.backends import bundle, torch_files
from resilient.backends.base import ALONE
from resilient.backends.stored_files import StoredFiles
from resilient.errors import BackendNotAvailableError


def tensors(
    saver: str, directory: str | os.PathLike[str], files: Mapping[str, int]
) -> dict[str, np.ndarray]:
    """Every tensor, by name.

    Args:
        saver: The backend that wrote them.
        directory: What it filled.
        files: Size of each file in it, of which every byte was compared.

    Raises:
        CorruptCheckpointError: The files hold something else than what it writes.
        BackendNotAvailableError: A library that reads its format is missing.
    """
    stored = StoredFiles(os.fspath(directory), files)
    if saver == "torch":
        return torch_files.of_checkpoint(stored)
    return bundle.tensors(stored) if saver == "tensorflow" else _of_jax(stored)


def _of_jax(stored: StoredFiles) -> dict[str, np.ndarray]:
    try:
        from resilient.backends import orbax_format
    except ImportError as error:
        raise BackendNotAvailableError(
            "A checkpoint of JAX is read with tensorstore, which cannot be imported.",
            received=f"{type(error).__name__}: {error}",
            hint="Install it with: pip install tensorstore (JAX is not needed).",
            name=error.name,
        ) from error
    found = orbax_format.read(stored, ALONE, piecewise=False)
    return {name: np.asarray(each) for name, each in found.items()}
