"""Tracks the steps that Keras's ``OrbaxCheckpoint`` wrote.

A snapshot waits until they are written and records their numbers. A resume deletes
later ones: the callback writes them again, and Orbax refuses an existing step. Remote
directories are left alone.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from resilient.objects.callbacks.special import Action, Arrays
from resilient.serialization import Encoded
from resilient.serialization.schema import well_formed


class OrbaxSteps:
    """The directory of an ``OrbaxCheckpoint`` callback.

    Args:
        callback: The callback.
        attempts: The processes that worked on this run before and died.
    """

    skipped = frozenset({"checkpointer", "_async_futures", "_multihost_initialized"})

    def __init__(self, callback: Any, attempts: Sequence[Mapping[str, Any]]) -> None:
        self._callback = callback
        self._starts = [float(a["started"]) for a in attempts]

    def capture(self, arrays: dict[str, np.ndarray], name: str) -> Encoded | None:
        self._callback.wait_until_finished()
        return self._steps()

    def plan(self, saved: Encoded, arrays: Arrays) -> list[Action]:
        steps = well_formed(list[int], saved, "the steps of an OrbaxCheckpoint")
        return [lambda: self._keep_only(steps)]

    def begin_anew(self) -> None:
        directory = Path(str(self._callback.checkpointer.directory))
        if self._starts and directory.is_dir():
            earlier = [
                step
                for step in self._steps()
                if (directory / str(step)).stat().st_mtime < min(self._starts)
            ]
            self._keep_only(earlier)

    def _steps(self) -> list[int]:
        return sorted(found.step for found in self._callback.checkpointer.checkpoints)

    def _keep_only(self, steps: list[int]) -> None:
        for step in self._steps():
            if step not in steps:
                self._callback.checkpointer.delete(step)
