"""Lightning's `AsyncCheckpointIO`, on its `torch.save`."""

from pathlib import Path

import keras
from lightning.pytorch.plugins.io import AsyncCheckpointIO, TorchCheckpointIO
from state import assign, tensors
from subjects import Peer


class Lightning(Peer):
    """What Lightning's Trainer calls to save in the background."""

    name = "Lightning AsyncCheckpointIO"
    background = True

    def __init__(self, model: keras.Model, directory: Path) -> None:
        super().__init__(model, directory)
        self._io = AsyncCheckpointIO(TorchCheckpointIO())

    def save(self) -> None:
        """A dict of tensors."""
        self._io.save_checkpoint({"state_dict": tensors(self.model)}, self.new_path())

    def wait(self) -> None:
        """Its thread ends, and another is started at the next save."""
        self._io.teardown()

    def restore(self) -> None:
        """Copied into the live tensors."""
        loaded = self._io.load_checkpoint(self.path(), weights_only=True)
        assign(self.model, loaded["state_dict"])


KINDS = [Lightning]
