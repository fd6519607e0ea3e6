"""Ranks of ``torch.distributed``: connects them, and assigns each its rows.

A custom training loop averages its gradients itself. If all ranks draw the same
batches, each gets its rows of them.
"""

import os
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from resilient.distributed.checks.batches import compared
from resilient.distributed.group import Group
from resilient.distributed.strategies.base import ParallelStrategy, as_bytes, as_text
from resilient.distributed.strategies.torch_slices import is_own_part, sliced
from resilient.errors import ResilientError

# Timeout of collectives. A lost process is noticed long before.
TIMEOUT = timedelta(minutes=30)

# Of the default group: one that communicates through the host.
_on_host: dict[distributed.ProcessGroup, distributed.ProcessGroup] = {}


class Ranks(ParallelStrategy):
    """The ranks of the existing default process group."""

    def __init__(self) -> None:
        super().__init__()
        self.index = distributed.get_rank()
        self.count = distributed.get_world_size()
        self.host = os.environ.get("MASTER_ADDR", "localhost")
        training = distributed.group.WORLD
        if training not in _on_host:
            _on_host.clear()  # of a default group that is gone
            _on_host[training] = distributed.new_group(backend="gloo")

    def broadcast(self, text: str) -> str:
        said = torch.tensor(as_bytes(text), dtype=torch.uint8)
        distributed.broadcast(said, 0, group=_on_host[distributed.group.WORLD])
        return as_text(said.tolist())


class DividingRanks(Ranks):
    """Ranks that draw the same batches and train their rows of each."""

    divides_arrays = True

    def rows(
        self, batches: Iterable[Any], data: Any, name: str, group: Group
    ) -> Iterable[Any]:
        if is_own_part(data, self.index, self.count):
            return batches
        return sliced(compared(batches, name, group), self.index, self.count)

    def draws_all(self, data: Any) -> bool:
        return not is_own_part(data, self.index, self.count)


def have_met() -> bool:
    """Whether the script created a process group of several processes.

    Raises:
        ResilientError: Its size differs from the launcher's.
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        return False
    size: int = distributed.get_world_size()
    if started() > 1 and size != started():
        raise ResilientError(
            "torch.distributed was initialized with a different number of processes "
            "than the launcher started.",
            received=f"{size} processes, WORLD_SIZE={started()}",
            hint="Initialize it with all of them, or leave that to keras-resilient.",
        )
    return size > 1


def started() -> int:
    """How many processes the launcher says that it started."""
    return int(os.environ.get("WORLD_SIZE") or 1)


def initialize() -> bool:
    """Initialize the group of a launcher's processes, unless the script did.

    Returns:
        Whether there are several processes.

    Raises:
        ResilientError: The launcher's variables do not fit this machine, or the group
            that the script initialized.
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
    variables = os.environ
    if (
        variables.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        or variables.get("GROUP_WORLD_SIZE") != "1"
    ):
        return {}
    found = distributed.rendezvous("env://", timeout=TIMEOUT)
    store, rank, size = next(found)
    start = f"start {variables.get('TORCHELASTIC_RESTART_COUNT', '0')}"
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
