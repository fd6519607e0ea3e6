"""Orbax's standard checkpointers, in the foreground and in the background."""

from pathlib import Path

import jax
import keras
import orbax.checkpoint as ocp
from state import assign, tensors
from subjects import Peer


class Orbax(Peer):
    """A `Checkpointer` with the standard handler."""

    name = "Orbax Checkpointer"
    flushes = True

    def __init__(self, model: keras.Model, directory: Path) -> None:
        super().__init__(model, directory)
        self._checkpointer = self.checkpointer()

    def checkpointer(self) -> ocp.Checkpointer:
        """What saves and restores."""
        return ocp.Checkpointer(ocp.StandardCheckpointHandler())

    def save(self) -> None:
        """Save the arrays."""
        self._checkpointer.save(self.new_path(), tensors(self.model))

    def restore(self) -> None:
        """Into arrays like those that are there."""
        like = jax.tree.map(ocp.utils.to_shape_dtype_struct, tensors(self.model))
        assign(self.model, self._checkpointer.restore(self.path(), like))

    def close(self) -> None:
        """End its threads."""
        self._checkpointer.close()


class AsyncOrbax(Orbax):
    """`StandardCheckpointer`, an `AsyncCheckpointer` with the same handler."""

    name = "Orbax Checkpointer, async"
    background = True

    def checkpointer(self) -> ocp.AsyncCheckpointer:
        """What saves in the background."""
        return ocp.StandardCheckpointer()

    def wait(self) -> None:
        """Until it is on disk."""
        self._checkpointer.wait_until_finished()


KINDS = [Orbax, AsyncOrbax]
