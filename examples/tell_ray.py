"""Connects training with Ray Train: reports to it, and saves before Ray stops it."""

from pathlib import Path
from typing import Any

import keras
import ray.train


class TellRay(keras.callbacks.Callback):
    """Reports metrics and checkpoints to Ray; saves when Ray takes a machine away.

    Every worker needs it, since Ray waits for all of them in both cases.

    Args:
        directory: The checkpoint directory.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory, self.newest = directory, ""

    def on_event(self, event: dict[str, Any]) -> None:
        """For ``resilient.fit(on_event=...)``, which calls it in process 0."""
        if event["event"] == "saved":
            self.newest = f"step-{event['step']:08d}"

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Report the metrics with the newest checkpoint, which Ray copies."""
        copied = None
        if self.newest:
            copied = ray.train.Checkpoint.from_directory(self.directory / self.newest)
        ray.train.report({"epoch": epoch + 1, **(logs or {})}, checkpoint=copied)

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Save repeatedly, from when Ray drains a machine until it is gone."""
        if batch % 10 == 9 and ray.train.get_preemption_info() is not None:
            (self.directory / "save").touch()
