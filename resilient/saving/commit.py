"""From a snapshot to a commit, and what is done after it; on the writer's thread."""

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext

from resilient.distributed.group import Group
from resilient.errors import CheckpointWriteError
from resilient.policies import KeepPolicy
from resilient.progress import Progress
from resilient.saving.parts import Parts, Write
from resilient.storage.store import Store
from resilient.telemetry.events import Events


class Committer:
    """Commits checkpoints, prunes, and tells the events.

    Args:
        store: Where checkpoints go.
        keep: What to keep.
        events: Told of every save.
        environment: Versions, for the manifest.
        group: The processes that train: each writes its part, process 0 commits.
        now: A clock in seconds that does not go back.

    Attributes:
        newest: The step that was committed last.
    """

    def __init__(
        self,
        store: Store,
        *,
        keep: KeepPolicy,
        events: Events,
        environment: Mapping[str, str],
        group: Group,
        now: Callable[[], float],
    ) -> None:
        self._now = now
        self._store, self._keep, self._events = store, keep, events
        self._environment, self._group = environment, group
        self.newest: int | None = None

    def commit_and_prune(
        self,
        progress: Progress,
        write: Write,
        *,
        metrics: Mapping[str, float],
        finished: bool,
        staging: str | None,
        stall: float,
    ) -> None:
        """Commit a checkpoint, or contribute to it, and prune.

        Args:
            progress: Where training was when the snapshot was taken.
            write: Fills a directory with this process's part.
            metrics: The logs of the epoch that ended, if one did.
            finished: Whether this is the end of the run.
            staging: Name of the staging directory, if processes agreed on one.
            stall: Seconds that training waited for the snapshot.

        Raises:
            CheckpointWriteError: The file system failed.
            PeerLostError: Another process is not there any more.
        """
        parts = None
        if staging is not None and self._group.count > 1:
            parts = Parts(self._group, staging)
            if self._group.index:
                parts.contribute(self._store.directory, progress, write)
                self.newest = progress.step
                return
        ready = _nobody_else if parts is None else parts.ready
        began = self._now()
        try:
            with nullcontext() if parts is None else parts.told():
                checkpoint = self._store.commit(
                    progress,
                    lambda path: write(path, ready),
                    metrics=metrics,
                    finished=finished,
                    environment=self._environment,
                    name=staging,
                    others=None if parts is None else parts.add_to,
                )
        except CheckpointWriteError as error:
            self._events.emit("save failed", step=progress.step, error=str(error))
            raise
        self.newest = progress.step
        # A training that ended with NaN (TerminateOnNaN) may want to go back.
        diverged = finished and not math.isfinite(metrics.get("loss", 0.0))
        pruned, failure = self._prune(nothing=diverged)
        seconds = self._now() - began
        self._events.emit(
            "saved",
            **progress.to_json(),
            finished=finished,
            nbytes=checkpoint.nbytes,
            seconds=seconds,
            stall=stall + (seconds if finished else 0.0),
            pruned=pruned,
        )
        if failure is not None:  # the checkpoint is there all the same
            text = str(failure)
            self._events.emit("prune failed", step=progress.step, error=text)
            raise failure

    def _prune(self, *, nothing: bool) -> tuple[list[int], CheckpointWriteError | None]:
        """The steps that were deleted, and why others could not be."""
        try:
            return ([] if nothing else self._store.prune(self._keep)), None
        except CheckpointWriteError as error:
            return [], error


def _nobody_else() -> None:
    """One process alone waits for nobody."""
