"""Commits snapshots to the store, and prunes it, on the writer thread.

The store makes a commit all or nothing (``storage/commit``).
"""

import math
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field

from resilient.distributed.group import ALONE, Group
from resilient.errors import CheckpointWriteError
from resilient.policies import KeepPolicy
from resilient.progress import Progress
from resilient.saving.parts import Parts, Write
from resilient.saving.unchanged import Unchanged
from resilient.storage.store import Store
from resilient.telemetry.events import Events


@dataclass(frozen=True)
class Save:
    """What a snapshot is of.

    Attributes:
        progress: Where training was when it was taken.
        metrics: The logs of the epoch that ended, if one did.
        finished: Whether this is the end of the run.
        staging: Name of the staging directory, if processes agreed on one.
        stall: Seconds that training waited for the snapshot.
        postponed: Whether it fell due while another was being written.
    """

    progress: Progress
    metrics: Mapping[str, float] = field(default_factory=dict)
    finished: bool = False
    staging: str | None = None
    stall: float = 0.0
    postponed: bool = False


@dataclass
class Committer:
    """Commits checkpoints, prunes, and emits events.

    Attributes:
        store: Where checkpoints go.
        keep: The retention policy.
        events: Records every save.
        environment: Versions, for the manifest.
        group: The processes that train: each writes its part, process 0 commits.
        now: A monotonic clock, in seconds.
        unchanged: Knows what the last saves held.
        newest: The step of the last save, if it was committed.
        prunes: Whether to delete checkpoints.
    """

    store: Store
    keep: KeepPolicy
    events: Events
    environment: Mapping[str, str]
    group: Group = ALONE
    now: Callable[[], float] = time.monotonic
    unchanged: Unchanged = field(default_factory=Unchanged)
    newest: int | None = None
    prunes: bool = True

    def commit_and_prune(self, save: Save, write: Write) -> None:
        """Commit a checkpoint, or contribute to it, and prune.

        Args:
            save: What it is of.
            write: Fills a directory with this process's part.

        Raises:
            CheckpointWriteError: The file system failed.
            PeerLostError: Another process is gone.
        """
        parts, progress = None, save.progress
        if save.staging is not None and self.group.count > 1:
            parts = Parts(self.group, save.staging)
            if self.group.index:
                parts.contribute(self.store.directory, progress, write)
                self.newest = progress.step
                return
        ready = _nobody_else if parts is None else parts.ready
        began = self.now()
        try:
            with nullcontext() if parts is None else parts.told():
                checkpoint = self.store.commit(
                    progress,
                    lambda path: write(path, ready),
                    metrics=save.metrics,
                    finished=save.finished,
                    environment=self.environment,
                    name=save.staging,
                    others=None if parts is None else parts.add_to,
                )
        except CheckpointWriteError as error:
            self.events.emit("save failed", step=progress.step, error=str(error))
            raise
        self.newest = progress.step
        self.unchanged.committed(checkpoint)
        # If training ended with NaN (TerminateOnNaN), the user may want to go back.
        diverged = save.finished and not math.isfinite(save.metrics.get("loss", 0.0))
        pruned, failure = self._prune(nothing=diverged or not self.prunes)
        seconds = self.now() - began
        self.events.emit(
            "saved",
            **progress.to_json(),
            finished=save.finished,
            nbytes=checkpoint.nbytes,
            seconds=seconds,
            stall=save.stall + (seconds if save.finished else 0.0),
            pruned=pruned,
            postponed=save.postponed,
        )
        if failure is not None:  # the checkpoint exists nevertheless
            text = str(failure)
            self.events.emit("prune failed", step=progress.step, error=text)
            raise failure

    def _prune(self, *, nothing: bool) -> tuple[list[int], CheckpointWriteError | None]:
        """The deleted steps, and why others could not be deleted."""
        try:
            return ([] if nothing else self.store.prune(self.keep)), None
        except CheckpointWriteError as error:
            return [], error


def _nobody_else() -> None:
    """A single process waits for nobody."""
