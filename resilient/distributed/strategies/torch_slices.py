"""Slices each rank's rows out of a batch.

All ranks draw the same batches of the whole job, in the same order, and each trains its
rows: contiguous, and equally many on every rank, so that the mean of the ranks'
gradients is that of the batch.

It refuses batches that cannot be split evenly, and data without rows.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import keras
import torch
from torch.utils.data import DistributedSampler

from resilient.errors import NotSupportedError, message

_ADVICE = (
    "Choose a batch size that is a multiple of the number of processes, and drop the "
    "incomplete batch at the end of an epoch (with drop_last, or a number of samples "
    "that is such a multiple)."
)


def rows(size: int, rank: int, world: int) -> slice:
    """This rank's rows of a batch.

    Args:
        size: Rows of the whole batch.
        rank: The number of this process.
        world: How many there are.

    Raises:
        ValueError: They cannot be split evenly.
    """
    if not size or size % world:
        raise ValueError(
            message(
                "Each process must get the same number of rows of a batch.",
                received=f"a batch of {size} rows, {world} processes",
                hint=_ADVICE,
            )
        )
    each = size // world
    return slice(rank * each, (rank + 1) * each)


def require_divisible(samples: int, batch_size: int, world: int) -> None:
    """Raise before training if some batch of an epoch cannot be split.

    Args:
        samples: Samples per epoch.
        batch_size: Rows of the whole batch.
        world: How many processes there are.

    Raises:
        ValueError: Names the batch.
    """
    if batch_size % world and samples >= batch_size:
        rows(batch_size, 0, world)
    last = samples % batch_size
    if last % world:
        raise ValueError(
            message(
                "Each process must get the same number of rows of the last batch of "
                "an epoch as well.",
                received=(
                    f"{samples} samples in batches of {batch_size}: the last one has "
                    f"{last} rows, for {world} processes"
                ),
                hint=_ADVICE,
            )
        )


def sliced(batches: Iterable[Any], rank: int, world: int) -> Iterator[Any]:
    """This rank's part of each batch. The iterator is created at once, as in Keras.

    Args:
        batches: Structures of arrays, the same on all ranks.
        rank: The number of this process.
        world: How many there are.

    Raises:
        NotSupportedError: A leaf cannot be sliced by rows.
        ValueError: A batch cannot be split evenly.
    """
    return (part(batch, rank, world) for batch in iter(batches))


def part(batch: Any, rank: int, world: int) -> Any:
    """This rank's part of one batch; a view if the library has views."""
    leaves = [leaf for leaf in keras.tree.flatten(batch) if leaf is not None]
    sizes = {_size(leaf) for leaf in leaves}
    if len(sizes) > 1:
        raise NotSupportedError(
            "All arrays of a batch must have the same number of rows to be split "
            "over processes.",
            received=f"arrays of {', '.join(map(str, sorted(sizes)))} rows",
            hint="Give one row for each sample.",
        )
    if not sizes:
        return batch
    (size,) = sizes
    mine = rows(size, rank, world)
    return keras.tree.map_structure(
        lambda leaf: None if leaf is None else _taken(leaf, mine), batch
    )


def is_own_part(loader: Any, rank: int, world: int) -> bool:
    """Whether a torch DataLoader already yields this rank's own samples.

    Raises:
        NotSupportedError: It does so for a different rank or number of processes.
    """
    samplers = (
        getattr(loader, "sampler", None),
        getattr(getattr(loader, "batch_sampler", None), "sampler", None),
    )
    found = [s for s in samplers if isinstance(s, DistributedSampler)]
    if found and (found[0].rank, found[0].num_replicas) != (rank, world):
        raise NotSupportedError(
            "The DistributedSampler is for a different process.",
            received=f"rank={found[0].rank}, num_replicas={found[0].num_replicas}; "
            f"this is process {rank} of {world}",
            hint="Create it without these arguments, after torch.distributed is "
            "initialized.",
        )
    return bool(found)


def _size(leaf: Any) -> int:
    """The number of rows of an array, if it has rows."""
    shape = getattr(leaf, "shape", None)
    dense = not isinstance(leaf, torch.Tensor) or leaf.layout == torch.strided
    if (
        shape
        and dense
        and hasattr(leaf, "__getitem__")
        and type(leaf).__name__ != "SparseTensor"  # TensorFlow's: indexed differently
    ):
        return int(shape[0])
    raise _no_rows(leaf)


def _taken(leaf: Any, mine: slice) -> Any:
    try:
        return leaf[mine]
    except TypeError as error:  # some sparse formats of scipy
        raise _no_rows(leaf) from error


def _no_rows(leaf: Any) -> NotSupportedError:
    layout = f" {leaf.layout}" if isinstance(leaf, torch.Tensor) else ""
    return NotSupportedError(
        "A batch contains something that cannot be split by rows over processes.",
        received=f"{type(leaf).__module__}.{type(leaf).__qualname__}{layout}",
        hint="Use dense arrays (or SciPy's CSR matrices) with one row for each sample.",
    )
