"""Tracks the steps that Keras's ``OrbaxCheckpoint`` wrote.

A snapshot waits until they are written and records their numbers. A resume deletes
later ones: the callback writes them once more, and Orbax refuses an existing step.
Remote directories are not touched.
"""

from pathlib import Path

import numpy as np

from resilient.objects.callbacks.special import Action, Arrays, Special
from resilient.serialization import Encoded
from resilient.serialization.schema import well_formed


class OrbaxSteps(Special):
    """The directory of an ``OrbaxCheckpoint`` callback."""

    skipped = frozenset({"checkpointer", "_async_futures", "_multihost_initialized"})

    def capture(self, arrays: dict[str, np.ndarray], name: str) -> Encoded | None:
        self._callback.wait_until_finished()
        return self._steps()

    def plan(self, saved: Encoded, arrays: Arrays) -> list[Action]:
        steps = well_formed(list[int], saved, "the steps of an OrbaxCheckpoint")
        return [lambda: self._keep_only(steps)]

    def begin_anew(self) -> None:
        directory = Path(str(self._callback.checkpointer.directory))
        if self._attempts and directory.is_dir():
            began = min(float(each["started"]) for each in self._attempts)
            found = {s: (directory / str(s)).stat().st_mtime for s in self._steps()}
            self._keep_only([step for step, time in found.items() if time < began])

    def _steps(self) -> list[int]:
        return sorted(found.step for found in self._callback.checkpointer.checkpoints)

    def _keep_only(self, steps: list[int]) -> None:
        for step in self._steps():
            if step not in steps:
                self._callback.checkpointer.delete(step)
