"""Keras's own callbacks, called as `fit` calls them after a batch.

OrbaxCheckpoint is in a module of its own, since it needs Orbax.
"""

from abc import ABC, abstractmethod
from pathlib import Path

import keras
from subjects import Peer


class CallbackPeer(Peer, ABC):
    """A callback that saves after each batch, or after each so many."""

    def __init__(self, model: keras.Model, directory: Path) -> None:
        super().__init__(model, directory)
        self._callback = self.callback(directory, 1)
        self._callback.set_model(model)
        self._callback.on_epoch_begin(0)

    @staticmethod
    @abstractmethod
    def callback(directory: Path, every: int) -> keras.callbacks.Callback:
        """The callback itself, for a fit."""

    def save(self) -> None:
        """As after a batch."""
        self._callback.on_train_batch_end(0, {})

    def tidy(self) -> None:
        """Its own affair: it overwrites, or deletes what is older."""


class BackupAndRestore(CallbackPeer):
    """`BackupAndRestore`: one `.weights.h5`, overwritten each time."""

    name = "BackupAndRestore"

    @staticmethod
    def callback(directory: Path, every: int) -> keras.callbacks.Callback:
        """Keeps its file at the end of training."""
        return keras.callbacks.BackupAndRestore(
            directory, save_freq=every, delete_checkpoint=False
        )

    def restore(self) -> None:
        """As when training begins."""
        self._callback.on_train_begin()


class ModelCheckpoint(CallbackPeer):
    """`ModelCheckpoint`: one whole model as `.keras`, overwritten each time."""

    name = "ModelCheckpoint"

    @staticmethod
    def callback(directory: Path, every: int) -> keras.callbacks.Callback:
        """Saves more than weights, which is its default."""
        return keras.callbacks.ModelCheckpoint(_model(directory), save_freq=every)

    def restore(self) -> None:
        """Weights and optimizer into the live model; `load_model` makes another."""
        self.model.load_weights(_model(self.directory))


def _model(directory: Path) -> Path:
    return directory / "model.keras"


KINDS = [BackupAndRestore, ModelCheckpoint]
