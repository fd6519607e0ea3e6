"""What each of two ranks does with DTensors: ``test_dtensors`` looks at the outcome.

python dtensors.py DIRECTORY
"""

import sys
from pathlib import Path

import numpy as np
import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import (
    Replicate,
    Shard,
    distribute_tensor,
)

from resilient import backends
from resilient.backends.base import Part
from resilient.backends.torch import BACKEND

WHOLE = {
    "rows": torch.arange(15.0).reshape(5, 3),  # three for one rank, two for the other
    "columns": torch.arange(24.0).reshape(3, 8).to(torch.bfloat16),
    "all": torch.arange(4),
}
PLACES = {"rows": Shard(0), "columns": Shard(1), "all": Replicate()}
OTHERS = {"rows": Shard(1), "columns": Replicate(), "all": Replicate()}


def spread(values, places):
    return {
        name: distribute_tensor(value.clone(), mesh, [places[name]])
        for name, value in values.items()
    }


def same(tensors):
    """Whether all have the values of ``WHOLE``."""
    return all(torch.equal(t.full_tensor(), WHOLE[n]) for n, t in tensors.items())


def check(directory):
    live = spread(WHOLE, PLACES)
    zeros = {name: torch.zeros_like(value) for name, value in WHOLE.items()}
    first = BACKEND.snapshot(spread(zeros, PLACES))
    snapshot = BACKEND.snapshot(live, reuse=first)
    for tensor in live.values():
        tensor.zero_()
    assert not same(live)
    for name, tensor in live.items():
        BACKEND.assign(tensor, snapshot.arrays[name])
    assert same(live), "put back from the parts that a snapshot holds"

    snapshot.write(str(directory), Part(RANK, 2))
    distributed.barrier()
    found = backends.read(BACKEND.name, str(directory), Part(RANK, 2))
    for places in (PLACES, OTHERS):
        other = spread(zeros, places)
        for name, tensor in other.items():
            BACKEND.assign(tensor, found[name])
        assert same(other), f"read into {places}"
    for name, value in WHOLE.items():  # as where the model is not spread
        plain = torch.zeros_like(value)
        BACKEND.assign(plain, found[name])
        assert torch.equal(plain, value)
    (rows,) = spread({"rows": zeros["rows"]}, PLACES).values()
    BACKEND.assign(rows, np.asarray(found["rows"]))  # as where one process had it all
    assert torch.equal(rows.full_tensor(), WHOLE["rows"])


distributed.init_process_group("gloo")
RANK = distributed.get_rank()
mesh = init_device_mesh("cpu", (2,))
check(Path(sys.argv[1]))
print("equal", flush=True)
