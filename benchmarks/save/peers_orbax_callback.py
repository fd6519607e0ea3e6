"""Keras's callback `OrbaxCheckpoint`, in the background, which is its default."""

from pathlib import Path

import keras
import orbax.checkpoint  # noqa: F401  # the callback needs it, and says so late
from peers_keras import CallbackPeer


class OrbaxCheckpoint(CallbackPeer):
    """`OrbaxCheckpoint`, which keeps one checkpoint."""

    name = "OrbaxCheckpoint"
    flushes = True
    background = True

    @staticmethod
    def callback(directory: Path, every: int) -> keras.callbacks.Callback:
        """Saves weights and optimizer."""
        return keras.callbacks.OrbaxCheckpoint(str(directory), save_freq=every)

    def wait(self) -> None:
        """Until it is on disk."""
        self._callback.wait_until_finished()

    def restore(self) -> None:
        """Weights and optimizer into the live model."""
        self.model.load_weights(str(self.directory))

    def close(self) -> None:
        """As at the end of training."""
        self._callback.on_train_end()


KINDS = [OrbaxCheckpoint]
