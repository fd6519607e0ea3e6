"""Reads PyTorch's distributed checkpoint format (DCP), which ``dcp_format`` writes.

A tensor that is spread over ranks (a DTensor) stays on the disk, and each rank reads
the part that it needs, however many ranks there are then. torch plans that; nothing is
unpickled, by it or by us.
"""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.tensor import DTensor

from resilient.backends import dcp_metadata, torch_files
from resilient.backends.base import Part
from resilient.backends.dcp_metadata import Chunk, SavedTensor
from resilient.backends.stored_files import StoredFiles, corrupt, decoding

METADATA = ".metadata"
_MOST = 64 << 20  # bytes of it
_OWN = "process-"

ToTorch = Callable[[np.ndarray], torch.Tensor]


class StoredTensor:
    """A tensor in a checkpoint, of which several ranks wrote parts.

    Args:
        files: Of the checkpoint.
        saved: The tensor.
    """

    def __init__(self, files: StoredFiles, saved: SavedTensor) -> None:
        self.shape, self.dtype = saved.shape, saved.dtype
        self._files, self._saved = files, saved

    def read_into(self, tensor: DTensor, to_torch: ToTorch) -> None:
        """Set this rank's part of a tensor; other ranks are not involved.

        Raises:
            CorruptCheckpointError: A file has something else in the tensor's place.
        """
        reader = _Reader(self._files, self._saved, to_torch)
        try:
            with warnings.catch_warnings():
                # Loading without a process group is intended.
                warnings.filterwarnings("ignore", "torch.distributed is disabled")
                dcp.load({_Reader.NAME: tensor}, storage_reader=reader, no_dist=True)
        except CheckpointException as error:  # a BaseException
            for failure, _ in error.failures.values():
                raise failure from error
            raise

    def __array__(
        self, dtype: np.dtype[Any] | None = None, copy: bool | None = None
    ) -> np.ndarray:
        """All of it, read again each time."""
        whole = np.empty(self.shape, self.dtype)
        for chunk in self._saved.chunks:
            pairs = zip(chunk.offsets, chunk.sizes, strict=True)
            place = tuple(slice(start, start + size) for start, size in pairs)
            whole[place] = _read_chunk(self._files, self._saved, chunk)
        return whole if dtype is None else whole.astype(dtype, copy=False)


def read(files: StoredFiles, part: Part) -> dict[str, Any]:
    """What all ranks have, and what only this part has.

    Args:
        files: What all ranks wrote.
        part: Whose.

    Raises:
        CorruptCheckpointError: They wrote something else.
    """
    own = f"{part.name}."
    with decoding(METADATA):
        saved = dcp_metadata.parse(files.read(METADATA, _MOST), files.sizes)
    return {
        name.removeprefix(own): StoredTensor(files, tensor)
        if len(tensor.chunks) > 1
        else np.asarray(StoredTensor(files, tensor))
        for name, tensor in saved.items()
        if name.startswith(own) or not name.startswith(_OWN)
    }


def _read_chunk(files: StoredFiles, tensor: SavedTensor, chunk: Chunk) -> np.ndarray:
    with decoding(chunk.file):
        array = torch_files.tensor(files.mapped(chunk.file)[chunk.place])
    if array.shape != chunk.sizes or array.dtype != tensor.dtype:
        raise corrupt(f"{chunk.file} has a tensor of a different shape or type")
    return array


class _Reader(FileSystemReader):  # type: ignore[misc]
    """Lets torch find out which part of a tensor a rank needs, and reads that."""

    NAME = "tensor"

    def __init__(
        self, files: StoredFiles, saved: SavedTensor, to_torch: ToTorch
    ) -> None:
        super().__init__(files.directory)
        self._files, self._saved, self._to_torch = files, saved, to_torch

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        saved = self._saved
        tensor = TensorStorageMetadata(
            TensorProperties(dtype=getattr(torch, str(saved.dtype))),
            torch.Size(saved.shape),
            [
                ChunkStorageMetadata(torch.Size(c.offsets), torch.Size(c.sizes))
                for c in saved.chunks
            ],
        )
        places = {MetadataIndex(self.NAME, c.offsets): c for c in saved.chunks}
        return Metadata({self.NAME: tensor}, storage_data=places)

    def read_data(self, plan: Any, planner: Any) -> torch.futures.Future[None]:
        for item in plan.items:
            chunk = self.storage_data[item.storage_index]
            whole = _read_chunk(self._files, self._saved, chunk)
            pairs = zip(item.storage_offsets, item.lengths, strict=True)
            part = whole[tuple(slice(start, start + size) for start, size in pairs)]
            target = planner.resolve_tensor(item).detach()
            target.copy_(self._to_torch(part))
            planner.commit_tensor(item, target)
        done: torch.futures.Future[None] = torch.futures.Future()
        done.set_result(None)
        return done
