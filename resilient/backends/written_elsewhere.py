"""Reads the tensors that some backend wrote, without that backend.

Nothing is imported but readers of the formats; of these only Orbax's needs a library,
TensorStore.
"""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from resilient.backends import bundle, dcp_chunks, torch_files
from resilient.backends.base import ALONE, Part
from resilient.backends.stored_files import Listed, StoredFiles
from resilient.errors import BackendNotAvailableError


def tensors(
    saver: str,
    directory: str | os.PathLike[str],
    files: Mapping[str, Listed],
    part: Part = ALONE,
    *,
    piecewise: bool = False,
) -> dict[str, Any]:
    """The tensors that all processes have, and those of one, by name.

    Args:
        saver: The backend that wrote them.
        directory: What it filled.
        files: Each file in it, of which every byte was compared.
        part: Which process's.
        piecewise: Leave large ones on the disk, as objects with shape and dtype that
            ``numpy.asarray`` reads; others may be mapped.

    Raises:
        CorruptCheckpointError: The files hold something else than what it writes.
        BackendNotAvailableError: A library that reads its format is missing.
    """
    stored = StoredFiles(os.fspath(directory), files)
    if saver == "torch":
        if dcp_chunks.METADATA in stored.sizes:
            return dcp_chunks.read(stored, part, piecewise=piecewise)
        return {**torch_files.of_checkpoint(stored)}
    if saver == "jax":
        return _of_jax(stored, part, piecewise)
    found = bundle.tensors(stored, piecewise=piecewise)
    if part.index:
        found |= bundle.tensors(stored.inside(part.name), piecewise=piecewise)
    return found


def _of_jax(stored: StoredFiles, part: Part, piecewise: bool) -> dict[str, Any]:
    try:
        from resilient.backends import orbax_format
    except ImportError as error:
        raise BackendNotAvailableError(
            "A checkpoint of JAX is read with tensorstore, which cannot be imported.",
            received=f"{type(error).__name__}: {error}",
            hint="Install it with: pip install tensorstore (JAX is not needed).",
            name=error.name,
        ) from error
    found = orbax_format.read(stored, part, piecewise=piecewise)
    if piecewise:
        return {**found}
    return {name: np.asarray(each) for name, each in found.items()}
