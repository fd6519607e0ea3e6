"""Reads a rank's part of a tensor in PyTorch's distributed checkpoint format (DCP).

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

from resilient.backends.dcp_chunks import StoredTensor

ToTorch = Callable[[np.ndarray], torch.Tensor]


def read_into(stored: StoredTensor, tensor: DTensor, to_torch: ToTorch) -> None:
    """Set this rank's part of a tensor; other ranks are not involved.

    Raises:
        CorruptCheckpointError: A file has something else in the tensor's place.
    """
    reader = _Reader(stored, to_torch)
    try:
        with warnings.catch_warnings():
            # Loading without a process group is intended.
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            dcp.load({_Reader.NAME: tensor}, storage_reader=reader, no_dist=True)
    except CheckpointException as error:  # a BaseException
        for failure, _ in error.failures.values():
            raise failure from error
        raise


class _Reader(FileSystemReader):  # type: ignore[misc]
    """Lets torch find out which part of a tensor a rank needs, and reads that."""

    NAME = "tensor"

    def __init__(self, stored: StoredTensor, to_torch: ToTorch) -> None:
        super().__init__(stored.files.directory)
        self._stored, self._to_torch = stored, to_torch

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        saved = self._stored.saved
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
            whole = self._stored.read_chunk(chunk)
            pairs = zip(item.storage_offsets, item.lengths, strict=True)
            part = whole[tuple(slice(start, start + size) for start, size in pairs)]
            target = planner.resolve_tensor(item).detach()
            target.copy_(self._to_torch(part))
            planner.commit_tensor(item, target)
        done: torch.futures.Future[None] = torch.futures.Future()
        done.set_result(None)
        return done
