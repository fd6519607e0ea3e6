"""PyTorch: ranks of ``torch.distributed``.

Since 3.16 Keras trains on them by itself, with ``DistributedDataParallel`` or DTensors.
Older versions train in one process, and ``torch_dp`` makes the ranks data-parallel. A
custom training loop averages its gradients itself.

If all ranks draw the same batches of the whole job, in the same order, each trains its
rows: contiguous, and equally many on every rank, so that the mean of the ranks'
gradients is that of the batch.
"""

import os
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import keras
import torch
from torch import distributed
from torch.utils.data import DistributedSampler

from resilient import keras_internals
from resilient.backends.base import Backend
from resilient.distributed.checks import compared
from resilient.distributed.group import Group
from resilient.distributed.strategies import base
from resilient.errors import NotSupportedError, ResilientError, message
from resilient.state.build import take_a_step

# Timeout of collectives. A lost process is noticed long before.
TIMEOUT = timedelta(minutes=30)

# Of the default group: one that communicates through the host.
_on_host: dict[distributed.ProcessGroup, distributed.ProcessGroup] = {}


class Ranks(base.ParallelStrategy):
    """The ranks of the existing default process group."""

    def __init__(self) -> None:
        self.index = distributed.get_rank()
        self.count = distributed.get_world_size()
        self.host = os.environ.get("MASTER_ADDR", "localhost")
        training = distributed.group.WORLD
        if training not in _on_host:
            _on_host.clear()  # of a default group that is gone
            _on_host[training] = distributed.new_group(backend="gloo")

    def _broadcast(self, numbers: list[int]) -> Iterable[int]:
        shared = torch.tensor(numbers, dtype=torch.uint8)
        distributed.broadcast(shared, 0, group=_on_host[distributed.group.WORLD])
        return list(shared.tolist())


class DividingRanks(Ranks):
    """Ranks that draw the same batches and train their rows of each."""

    divides_arrays = True

    def rows(
        self, batches: Iterable[Any], data: Any, name: str, group: Group
    ) -> Iterable[Any]:
        if is_own_part(data, self.index, self.count):
            return batches
        drawn = compared(batches, name, group)
        return (part(batch, self.index, self.count) for batch in drawn)

    def draws_all(self, data: Any) -> bool:
        return not is_own_part(data, self.index, self.count)


class KerasRanks(base.KerasProcesses, Ranks):
    """Ranks that Keras's own ``fit`` trains on."""

    def warm_up(self, model: keras.Model, iterator: Any, backend: Backend) -> None:
        """Run the step after which ``DistributedDataParallel`` rebuilds its buckets.

        It orders them as gradients arrive. The place of a gradient in its bucket
        decides the order in which more than two ranks are summed.
        """
        parallel = keras.distribution.distribution()
        spread = isinstance(parallel, keras.distribution.ModelParallel)  # no buckets
        if self.count > 2 and not spread:
            take_a_step(model, iterator, backend)


def parallel_strategy(strategy: None, *, by_hand: bool) -> Ranks | None:
    """The ranks that train together, if there are several; initializes the group."""
    if by_hand:
        return DividingRanks() if initialize() else None
    if not keras_internals.generation.trains_on_ranks:
        from resilient.distributed.strategies.torch_dp.strategy import AveragingRanks

        return AveragingRanks() if initialize() else None
    if have_met():
        return KerasRanks()
    if started() > 1:
        raise base.models_of_their_own(
            f"WORLD_SIZE={started()}, and torch.distributed is not initialized"
        )
    return None


def have_met() -> bool:
    """Whether the script created a process group of several processes."""
    met = distributed.is_available() and distributed.is_initialized()
    return bool(met and distributed.get_world_size() > 1)


def started() -> int:
    """How many processes the launcher says that it started."""
    return int(os.environ.get("WORLD_SIZE") or 1)


def initialize() -> bool:
    """Initialize the group of a launcher's processes, unless the script did.

    Returns:
        Whether there are several processes.

    Raises:
        ResilientError: The launcher's variables do not fit this machine.
    """
    if have_met():
        return True
    if started() < 2:
        return False
    backend = "gloo"
    if torch.cuda.is_available():
        _take_device()
        backend = "cpu:gloo,cuda:nccl"
    distributed.init_process_group(backend, timeout=TIMEOUT, **_of_this_start())
    return True


def _of_this_start() -> dict[str, Any]:
    """The key under which ranks restarted by torchrun find each other.

    On one machine torchrun keeps one store for all restarts, and a rank may read the
    address of a process that is gone (pytorch#135712). On several machines, each counts
    its own restarts: they share no number.
    """
    get = os.environ.get
    if (get("TORCHELASTIC_USE_AGENT_STORE"), get("GROUP_WORLD_SIZE")) != ("True", "1"):
        return {}
    found = distributed.rendezvous("env://", timeout=TIMEOUT)
    store, rank, size = next(found)
    start = f"start {get('TORCHELASTIC_RESTART_COUNT', '0')}"
    store = distributed.PrefixStore(start, store)
    return {"store": store, "rank": rank, "world_size": size}


def _take_device() -> None:
    """Make the local rank's device the current one, which Keras then uses."""
    local, count = os.environ.get("LOCAL_RANK", ""), torch.cuda.device_count()
    if not local.isdigit() or int(local) >= count:
        raise ResilientError(
            "Every process needs its own CUDA device.",
            received=f"LOCAL_RANK={local or 'not set'}, {count} devices",
            hint="Start at most as many processes per machine as it has devices, "
            "or hide all devices with CUDA_VISIBLE_DEVICES=''.",
        )
    torch.cuda.set_device(int(local))


def rows(size: int, rank: int, world: int, what: str = "a batch") -> slice:
    """This rank's rows of a batch.

    Args:
        size: Rows of the whole batch.
        rank: The number of this process.
        world: How many there are.
        what: Names the batch in messages.

    Raises:
        ValueError: They cannot be split evenly.
    """
    if not size or size % world:
        raise ValueError(
            message(
                "Each process must get the same number of rows of a batch.",
                received=f"{what} of {size} rows, {world} processes",
                hint="Choose a batch size that is a multiple of the number of "
                "processes, and drop the incomplete batch at the end of an epoch (with "
                "drop_last, or a number of samples that is such a multiple).",
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
    if samples >= batch_size:
        rows(batch_size, 0, world)
    if last := samples % batch_size:
        rows(last, 0, world, "the last batch of an epoch,")


def part(batch: Any, rank: int, world: int) -> Any:
    """This rank's part of one batch; a view if the library has views."""
    sizes = {_size(leaf) for leaf in keras.tree.flatten(batch) if leaf is not None}
    if len(sizes) > 1:
        raise NotSupportedError(
            "All arrays of a batch must have the same number of rows to be split "
            "over processes.",
            received=f"arrays of {', '.join(map(str, sorted(sizes)))} rows",
            hint="Give one row for each sample.",
        )
    mine = rows(sizes.pop(), rank, world) if sizes else slice(None)
    return keras.tree.map_structure(
        lambda leaf: None if leaf is None else leaf[mine], batch
    )


def is_own_part(loader: Any, rank: int, world: int) -> bool:
    """Whether a torch DataLoader already yields this rank's own samples.

    Raises:
        NotSupportedError: It does so for a different rank or number of processes.
    """
    batches = getattr(loader, "batch_sampler", None)
    found = getattr(loader, "sampler", None), getattr(batches, "sampler", None)
    own = next((each for each in found if isinstance(each, DistributedSampler)), None)
    if own is not None and (own.rank, own.num_replicas) != (rank, world):
        raise NotSupportedError(
            "The DistributedSampler is for a different process.",
            received=f"rank={own.rank}, num_replicas={own.num_replicas}; "
            f"this is process {rank} of {world}",
            hint="Create it without these arguments, after torch.distributed is "
            "initialized.",
        )
    return own is not None


def _size(leaf: Any) -> int:
    """The number of rows of an array, if it has rows that an index takes."""
    shape = getattr(leaf, "shape", None)
    sparse = isinstance(leaf, torch.Tensor) and leaf.layout != torch.strided
    if shape and hasattr(leaf, "__getitem__") and not sparse:
        return int(shape[0])
    raise NotSupportedError(
        "A batch contains something that cannot be split by rows over processes.",
        received=f"{type(leaf).__module__}.{type(leaf).__qualname__}",
        hint="Use dense arrays (or SciPy's CSR matrices) with one row for each sample.",
    )
