"""When a checkpoint is due, and what happens around a commit."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Literal

from resilient.checkpoints.store import Store
from resilient.errors import CheckpointWriteError
from resilient.events import Events
from resilient.policies import KeepPolicy, SavePolicy
from resilient.progress import Progress

logger = logging.getLogger(__name__)

OnSaveError = Literal["raise", "warn"]


class Saving:
    """Saves when the policy says so, prunes, and tells the events.

    Args:
        store: Where checkpoints go.
        policy: When to save.
        keep: What to keep.
        events: Told of every save.
        environment: Versions, for the manifest.
        on_error: ``"raise"`` the ``CheckpointWriteError`` of a failed save, or
            ``"warn"`` and train on.
        now: A clock in seconds that does not go back.
    """

    def __init__(
        self,
        store: Store,
        *,
        policy: SavePolicy,
        keep: KeepPolicy,
        events: Events,
        environment: Mapping[str, str],
        on_error: OnSaveError,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._policy = policy
        self._keep = keep
        self._events = events
        self._environment = environment
        self._on_error = on_error
        self._now = now
        self._requested = False
        self.start(Progress(0, 0, 0))

    def start(self, progress: Progress) -> None:
        """Intervals count from here."""
        self._last, self._last_now = progress, self._now()

    def request(self) -> None:
        """Save at the next batch boundary, whatever the policy says."""
        self._requested = True

    def due(self, progress: Progress) -> bool:
        return self._requested or self._policy.due(
            self._now(), progress, self._last_now, self._last
        )

    def save(
        self,
        progress: Progress,
        write: Callable[[str], None],
        *,
        metrics: Mapping[str, float],
        finished: bool,
    ) -> None:
        """Commit a checkpoint and delete those that are kept no more.

        Raises:
            CheckpointWriteError: The file system failed; with ``on_error="warn"`` it
                is logged, and the next save that is due is the next try.
        """
        began = self._now()
        self._requested = False
        try:
            self._commit_and_prune(progress, write, metrics, finished, began)
        except CheckpointWriteError as error:
            if self._on_error == "raise":
                raise
            logger.warning("Training goes on: %s", error)
        finally:
            self.start(progress)

    def _commit_and_prune(
        self,
        progress: Progress,
        write: Callable[[str], None],
        metrics: Mapping[str, float],
        finished: bool,
        began: float,
    ) -> None:
        step = progress.step
        try:
            checkpoint = self._store.commit(
                progress,
                write,
                metrics=metrics,
                finished=finished,
                environment=self._environment,
            )
        except CheckpointWriteError as error:
            self._events.emit("save failed", step=step, error=str(error))
            raise
        pruned, failure = [], None
        try:
            pruned = self._store.prune(self._keep)
        except CheckpointWriteError as error:
            failure = error
        self._events.emit(
            "saved",
            **progress.to_json(),
            finished=finished,
            nbytes=checkpoint.nbytes,
            seconds=self._now() - began,
            pruned=pruned,
        )
        if failure is not None:  # the checkpoint is there all the same
            self._events.emit("prune failed", step=step, error=str(failure))
            raise failure
