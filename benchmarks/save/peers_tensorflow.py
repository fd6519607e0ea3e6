"""`tf.train.Checkpoint`, in the foreground and in the background.

Of TensorFlow's own variables: given a Keras model, a second save in the background
fails, since Keras's variables make others inside the `tf.function` that copies them.
"""

from pathlib import Path

import keras
import tensorflow as tf
from state import tensors
from subjects import Peer


class TrainCheckpoint(Peer):
    """`tf.train.Checkpoint(...).save`."""

    name = "tf.train.Checkpoint"

    def __init__(self, model: keras.Model, directory: Path) -> None:
        super().__init__(model, directory)
        self._checkpoint = tf.train.Checkpoint(tensors=tensors(model))
        self._options = tf.train.CheckpointOptions(
            experimental_enable_async_checkpoint=self.background
        )

    def save(self) -> None:
        """Save under a new number."""
        prefix = str(self.directory / "state")
        self._saved = self._checkpoint.save(prefix, options=self._options)

    def wait(self) -> None:
        """Until a save in the background has ended."""
        self._checkpoint.sync()

    def restore(self) -> None:
        """Into the live variables."""
        self._checkpoint.restore(self._saved)


class AsyncTrainCheckpoint(TrainCheckpoint):
    """The same with `experimental_enable_async_checkpoint`."""

    name = "tf.train.Checkpoint, async"
    background = True


KINDS = [TrainCheckpoint, AsyncTrainCheckpoint]
