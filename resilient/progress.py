"""The progress of a run: epoch, batch within the epoch, step since the run began."""

from typing import NamedTuple


class Progress(NamedTuple):
    """A point between two training batches.

    Attributes:
        step: Batches trained since the start of the run.
        epoch: Epoch in progress, counted from 0. At the end of an epoch, the next one.
        batch: Batches trained in that epoch.
    """

    step: int
    epoch: int
    batch: int

    def __str__(self) -> str:
        return f"step {self.step:,} (epoch {self.epoch + 1}, batch {self.batch:,})"
