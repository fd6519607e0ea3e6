"""`torch.save`, and distributed checkpoints (DCP) of one process."""

import warnings
from pathlib import Path

import keras
import torch
from state import assign, tensors
from subjects import Peer
from torch.distributed import checkpoint as dcp


class Save(Peer):
    """`torch.save` and `torch.load`."""

    name = "torch.save"

    def save(self) -> None:
        """A dict of tensors."""
        torch.save(tensors(self.model), self.new_path())

    def restore(self) -> None:
        """Copied into the live tensors."""
        assign(self.model, torch.load(self.path(), weights_only=True))


class Distributed(Peer):
    """`dcp.save` and `dcp.load`."""

    name = "DCP save"
    flushes = True

    def __init__(self, model: keras.Model, directory: Path) -> None:
        super().__init__(model, directory)
        # It says at each call that there is one process only.
        warnings.filterwarnings("ignore", "torch.distributed is disabled")

    def save(self) -> None:
        """A directory."""
        dcp.save(tensors(self.model), checkpoint_id=self.new_path())

    def restore(self) -> None:
        """It loads into the live tensors."""
        dcp.load(tensors(self.model), checkpoint_id=self.path())


class AsyncDistributed(Distributed):
    """`dcp.async_save`, on a thread, which is its default."""

    name = "DCP async_save"
    background = True

    def save(self) -> None:
        """A directory."""
        path = self.new_path()
        self._saved = dcp.async_save(tensors(self.model), checkpoint_id=path)

    def wait(self) -> None:
        """Until it is on disk."""
        self._saved.result()


KINDS = [Save, Distributed, AsyncDistributed]
