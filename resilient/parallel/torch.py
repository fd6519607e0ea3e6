"""PyTorch: ``torch.distributed``, which ``torchrun`` and ``resilient run`` prepare."""

import os

import keras
import torch
import torch.distributed as dist

from resilient.backends import dcp_format
from resilient.parallel import LENGTH


class Ranks:
    """The ranks of the default process group."""

    def __init__(self) -> None:
        self.index = dist.get_rank()
        self.count = dist.get_world_size()
        self.host = os.environ.get("MASTER_ADDR", "localhost")
        # NCCL moves nothing but what is on a GPU.
        self.group = dist.new_group(backend="gloo")
        dcp_format.make_group()

    def broadcast(self, text: str) -> str:
        said = torch.zeros(LENGTH, dtype=torch.uint8)
        said[: len(text)] = torch.tensor(list(text.encode("ascii")), dtype=torch.uint8)
        dist.broadcast(said, 0, group=self.group)
        return bytes(said.numpy()).rstrip(b"\0").decode("ascii")


def engine_of(model: keras.Model) -> Ranks | None:
    """The ranks that train together, if there are several; starts what is needed."""
    if not dist.is_available():
        return None
    if not dist.is_initialized():
        if os.environ.get("WORLD_SIZE", "1") in ("", "1"):
            return None
        dist.init_process_group("gloo")
    return Ranks() if dist.get_world_size() > 1 else None
