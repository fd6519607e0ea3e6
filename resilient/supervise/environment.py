"""Builds the environment of each process, and chooses a gang's ports.

Local processes find each other through the variables that the backends read: those of
``torch.distributed`` (``torchrun``), TensorFlow's ``TF_CONFIG``, and for JAX those of
``keras.distribution.initialize()``. ``jax.distributed.initialize()`` reads only the
address: pass it ``WORLD_SIZE`` and ``RANK``.
"""

import json
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from resilient.telemetry.heartbeat import VARIABLE

HOST = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """Distinct ports that nothing is listening on now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((HOST, 0))
        return [int(each.getsockname()[1]) for each in sockets]


def of_process(
    base: Mapping[str, str], heartbeat: Path, rank: int, nproc: int, ports: list[int]
) -> dict[str, str]:
    """The environment of one process.

    Args:
        base: The supervisor's environment.
        heartbeat: The file for the process's heartbeat.
        rank: The number of the process.
        nproc: How many there are; a single one gets no distributed variables.
        ports: One per process, one for torch and one for JAX; alike in the whole gang.
    """
    ours = {VARIABLE: str(heartbeat), "PYTHONFAULTHANDLER": "1"}
    gang = _gang(rank, nproc, ports) if nproc > 1 else {}
    return {"PYTHONUNBUFFERED": "1", **base, **ours, **gang}


def _gang(rank: int, nproc: int, ports: list[int]) -> dict[str, str]:
    torch, jax, *workers = ports
    addresses = [f"{HOST}:{port}" for port in workers]
    task = {"type": "worker", "index": rank}
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(nproc),
        "LOCAL_WORLD_SIZE": str(nproc),
        "MASTER_ADDR": HOST,
        "MASTER_PORT": str(torch),
        "TF_CONFIG": json.dumps({"cluster": {"worker": addresses}, "task": task}),
        "JAX_COORDINATOR_ADDRESS": f"{HOST}:{jax}",
        "KERAS_DISTRIBUTION_JOB_ADDRESSES": f"{HOST}:{jax}",
        "KERAS_DISTRIBUTION_NUM_PROCESSES": str(nproc),
        "KERAS_DISTRIBUTION_PROCESS_ID": str(rank),
    }
