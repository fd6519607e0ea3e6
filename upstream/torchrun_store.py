"""What ``torchrun`` starts again finds the addresses of processes that are gone.

All its starts share one store, where ranks leave their addresses for each other: one
that is faster than the rest connects to a process of the start before, and fails
(https://github.com/pytorch/pytorch/issues/135712).

Backends: torch
"""

import logging
import os
import sys

from torch import distributed
from torch.distributed.launcher.api import LaunchConfig, elastic_launch


def start() -> str:
    """Leave an address and fail; the second time, see whether it is there."""
    store, _, _ = next(distributed.rendezvous("env://"))
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        store.set("address", f"process {os.getpid()}")
        os._exit(2)
    return store.get("address").decode() if store.check(["address"]) else ""


logging.disable()  # it is meant to fail
torchrun = LaunchConfig(
    *(1, 1, 1),  # processes
    rdzv_backend="c10d",
    rdzv_endpoint="localhost:0",
    local_addr="localhost",
    start_method="fork",
    max_restarts=1,
    monitor_interval=0.1,
)
found = elastic_launch(torchrun, start)()[0]
if not found:
    sys.exit("gone: the second start has a store of its own")
print(f"shown: the second start finds what the first, {found}, left")
