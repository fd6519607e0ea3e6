"""Tracks the steps that Keras's ``OrbaxCheckpoint`` wrote.

A snapshot waits until they are written and records their numbers. A resume deletes
later ones: the callback writes them once more, and Orbax refuses an existing step.
Remote directories are not touched.
"""

from pathlib import Path

from resilient.objects.callbacks.special import Special


class OrbaxSteps(Special):
    """The directory of an ``OrbaxCheckpoint`` callback."""

    skipped = frozenset({"checkpointer", "_async_futures", "_multihost_initialized"})

    def state(self) -> list[int]:
        self._callback.wait_until_finished()
        return self._steps()

    def restore(self, state: list[int]) -> None:
        for step in self._steps():
            if step not in state:
                self._callback.checkpointer.delete(step)

    def begin_anew(self, began: float) -> None:
        directory = Path(str(self._callback.checkpointer.directory))
        if directory.is_dir():
            found = {s: (directory / str(s)).stat().st_mtime for s in self._steps()}
            self.restore([step for step, time in found.items() if time < began])

    def _steps(self) -> list[int]:
        return sorted(found.step for found in self._callback.checkpointer.checkpoints)
