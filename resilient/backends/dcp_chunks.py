"""Reads PyTorch's distributed checkpoint format (DCP) without torch, tensor by tensor.

A tensor that is spread over ranks (a DTensor) is in chunks, which several of them
wrote; ``dcp_stored`` reads only those that a rank needs.
"""

from typing import Any

import numpy as np

from resilient.backends import dcp_metadata, torch_files
from resilient.backends.base import Part
from resilient.backends.dcp_metadata import Chunk, SavedTensor
from resilient.backends.stored_files import StoredFiles, corrupt, decoding

METADATA = ".metadata"
_MOST = 64 << 20  # bytes of it
_OWN = "process-"


class StoredTensor:
    """A tensor in a checkpoint, of which several ranks may have written parts.

    Args:
        files: Of the checkpoint.
        saved: The tensor.
    """

    def __init__(self, files: StoredFiles, saved: SavedTensor) -> None:
        self.shape, self.dtype = saved.shape, saved.dtype
        self.files, self.saved = files, saved

    def read_chunk(self, chunk: Chunk) -> np.ndarray:
        """A chunk of it, as a view of its file.

        Raises:
            CorruptCheckpointError: The file has something else in its place.
        """
        with decoding(chunk.file):
            array = torch_files.tensor(self.files.mapped(chunk.file)[chunk.place])
        if array.shape != chunk.sizes or array.dtype != self.dtype:
            raise corrupt(f"{chunk.file} has a tensor of a different shape or type")
        return array

    def __array__(
        self, dtype: np.dtype[Any] | None = None, copy: bool | None = None
    ) -> np.ndarray:
        """All of it, read again each time."""
        whole = np.empty(self.shape, self.dtype)
        for chunk in self.saved.chunks:
            pairs = zip(chunk.offsets, chunk.sizes, strict=True)
            place = tuple(slice(start, start + size) for start, size in pairs)
            whole[place] = self.read_chunk(chunk)
        return whole if dtype is None else whole.astype(dtype, copy=False)


def read(files: StoredFiles, part: Part, *, piecewise: bool = False) -> dict[str, Any]:
    """What all ranks have, and what only this part has.

    Args:
        files: What all ranks wrote.
        part: Whose.
        piecewise: Leave all of it on the disk, not only what is in several chunks.

    Raises:
        CorruptCheckpointError: They wrote something else.
    """
    own = f"{part.name}."
    with decoding(METADATA):
        saved = dcp_metadata.parse(files.read(METADATA, _MOST), files.sizes)
    return {
        name.removeprefix(own): StoredTensor(files, tensor)
        if piecewise or len(tensor.chunks) > 1
        else np.asarray(StoredTensor(files, tensor))
        for name, tensor in saved.items()
        if name.startswith(own) or not name.startswith(_OWN)
    }
