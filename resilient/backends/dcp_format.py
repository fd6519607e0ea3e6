"""Writes PyTorch's distributed checkpoint format (DCP), where several ranks train.

``torch.distributed.checkpoint.load`` reads it. The ranks compare what all have, and
divide the work of writing it; names of a rank's own tensors begin with the rank. DCP's
collectives have a process group of their own: on the training's they would be taken for
gradients.

The owners of its parts write a tensor that is spread over ranks (a DTensor); how it is
read is in ``dcp_chunks`` and ``dcp_stored``.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
import xxhash
from torch.distributed.tensor import DTensor

from resilient.backends.base import Part
from resilient.errors import ResilientError

_groups: dict[dist.ProcessGroup, dist.ProcessGroup] = {}


def make_group() -> None:
    """Make the group for writing, if there is none yet; called by all ranks."""
    training = dist.group.WORLD
    if training not in _groups:
        _groups.clear()  # of a default group that is gone
        _groups[training] = dist.new_group(backend="gloo")


def group() -> dist.ProcessGroup:
    """That group, which communicates through the host."""
    return _groups[dist.group.WORLD]


def write(tensors: Mapping[str, torch.Tensor], directory: str, part: Part) -> None:
    """Write this rank's share into an existing directory of its own.

    Raises:
        OSError: Some rank's file system failed.
        ResilientError: The ranks differ in what all should have.
        RuntimeError: Something else failed, or a rank is gone.
    """
    # Importing it takes long, and one process alone does without.
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import FileSystemWriter
    from torch.distributed.checkpoint.api import CheckpointException

    ours = group()
    common = {name: t for name, t in tensors.items() if name not in part.own}
    _require_equal(common, ours)
    own = {f"{part.name}.{name}": tensors[name] for name in sorted(part.own)}
    # Files are flushed when the checkpoint is sealed.
    writer = FileSystemWriter(directory, sync_files=False, overwrite=True)
    try:
        dcp.save(common | own, storage_writer=writer, process_group=ours)
    except CheckpointException as error:  # a BaseException
        failures = [failure for failure, _ in error.failures.values()]
        for failure in failures:
            if isinstance(failure, OSError):
                raise OSError(failure.errno, failure.strerror, directory) from failure
        raise RuntimeError(str(error)) from error


def _require_equal(tensors: Mapping[str, torch.Tensor], group: Any) -> None:
    """Raise if ranks have different weights: they did not train one model."""
    digests: dict[str, Any] = {}
    for name in sorted(tensors):
        tensor, held = tensors[name], "whole"
        if isinstance(tensor, DTensor):
            # Ranks at the same place along what it is cut by hold the same part.
            held = str(_place(tensor))
            tensor = tensor.to_local()
        digest = digests.setdefault(held, xxhash.xxh3_128())
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy())
    mine = {held: digest.hexdigest() for held, digest in digests.items()}
    if others := _others(mine, group):
        raise ResilientError(
            "The ranks have different weights or optimizer states: part of the model "
            "is trained without averaging its gradients.",
            received=f"ranks {others} differ from the ranks before them",
            hint="Train through Keras's optimizers, change weights the same way in "
            "all ranks (in callbacks, too), and start ranks that share one replica "
            "with the same seed (keras.utils.set_random_seed).",
        )


def _place(tensor: DTensor) -> list[tuple[int, int]]:
    """The dimensions of its mesh along which a tensor is cut, and this rank's part."""
    coordinate = tensor.device_mesh.get_coordinate() or []
    return [
        (dimension, at)
        for dimension, at in enumerate(coordinate)
        if not tensor.placements[dimension].is_replicate()
    ]


def _others(mine: Mapping[str, str], group: Any) -> list[int]:
    """Ranks that differ from one before them that should hold the same."""
    everyones: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyones, dict(mine), group=group)
    first: dict[str, str] = {}
    return [
        rank
        for rank, theirs in enumerate(everyones)
        if any(
            first.setdefault(held, digest) != digest for held, digest in theirs.items()
        )
    ]
