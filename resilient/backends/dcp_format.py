"""PyTorch's distributed checkpoint format (DCP), where several ranks train.

``torch.distributed.checkpoint.load`` reads it. The ranks divide the work of writing
what they have in common, and first compare it; what is a rank's own is named after it.
DCP's collectives have a process group of their own: on that of the training they would
be taken for gradients.
"""

import os
import warnings
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import xxhash
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.api import CheckpointException

from resilient.backends.base import Part
from resilient.errors import ResilientError, describe

_OWN = "process-"
_groups: dict[dist.ProcessGroup, dist.ProcessGroup] = {}


def make_group() -> None:
    """Make the group for writing, if there is none yet; called by all ranks."""
    training = dist.group.WORLD
    if training not in _groups:
        _groups.clear()  # of a default group that is gone
        _groups[training] = dist.new_group(backend="gloo")


def write(tensors: Mapping[str, torch.Tensor], directory: str, part: Part) -> None:
    """Write this rank's share into an existing directory of its own.

    Raises:
        OSError: Some rank's file system failed.
        ResilientError: The ranks do not have in common what they should.
        RuntimeError: Something else did, or a rank is gone.
    """
    group = _groups[dist.group.WORLD]
    common = {name: t for name, t in tensors.items() if name not in part.own}
    _require_equal(common, group)
    own = {f"{part.name}.{name}": tensors[name] for name in sorted(part.own)}
    # Files are flushed when the checkpoint is sealed.
    writer = FileSystemWriter(directory, sync_files=False, overwrite=True)
    try:
        dcp.save(common | own, storage_writer=writer, process_group=group)
    except CheckpointException as error:  # a BaseException
        failures = [failure for failure, _ in error.failures.values()]
        for failure in failures:
            if isinstance(failure, OSError):
                raise OSError(failure.errno, failure.strerror, directory) from failure
        raise RuntimeError(str(error)) from error


def _require_equal(tensors: Mapping[str, torch.Tensor], group: Any) -> None:
    """Raise where ranks have different weights: they did not train one model."""
    digest = xxhash.xxh3_128()
    for name in sorted(tensors):
        digest.update(tensors[name].contiguous().view(-1).view(torch.uint8).numpy())
    if others := _others(digest.digest(), group):
        raise ResilientError(
            describe(
                "The ranks have different weights or optimizer states: something "
                "trains a part of the model without averaging its gradients.",
                f"ranks {others} differ from rank 0",
                "Train through Keras's optimizers, and change weights in all ranks "
                "alike (in callbacks, too).",
            )
        )


def _others(digest: bytes, group: Any) -> list[int]:
    """Ranks whose digest is not that of rank 0; known to all."""
    mine = torch.frombuffer(bytearray(digest), dtype=torch.uint8)
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everyone, mine, group=group)
    return [rank for rank, each in enumerate(everyone) if not each.equal(everyone[0])]


def read(directory: str, part: Part) -> dict[str, torch.Tensor]:
    """What all ranks have in common, and what is this part's own."""
    reader = FileSystemReader(directory)
    own = f"{part.name}."
    tensors = {
        name: torch.empty(saved.size, dtype=saved.properties.dtype)
        for name, saved in reader.read_metadata().state_dict_metadata.items()
        if name.startswith(own) or not name.startswith(_OWN)
    }
    with warnings.catch_warnings():
        # That it loads without a process group is what it is asked for.
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        dcp.load(tensors, storage_reader=reader, no_dist=True)
    return {name.removeprefix(own): tensor for name, tensor in tensors.items()}


def is_here(directory: str) -> bool:
    """Whether a directory holds this format."""
    return os.path.exists(os.path.join(directory, ".metadata"))
