"""What the writer's thread does: it writes snapshots, commits them, and prunes.

It handles one snapshot at a time, which training hands over before it continues.
Nothing queues up here: another one has to wait or be offered later. An error is kept
until the training thread asks for it. The store makes a commit all or nothing
(``storage/commit``).
"""

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from resilient.distributed.group import ALONE, Group
from resilient.errors import CheckpointWriteError
from resilient.policies import KeepPolicy
from resilient.saving.parts import Parts, contribute
from resilient.saving.snapshot import Snapshot
from resilient.saving.unchanged import Unchanged
from resilient.storage.checkpoint import Checkpoint
from resilient.storage.store import Store
from resilient.telemetry.events import Events


def commit(
    store: Store,
    snapshot: Snapshot,
    environment: Mapping[str, str],
    unchanged: Unchanged,
    group: Group = ALONE,
) -> Checkpoint:
    """Write a snapshot, and make a checkpoint of it.

    Args:
        store: Where the checkpoint goes.
        snapshot: The snapshot; of process 0, if there are several.
        environment: Versions, for the manifest.
        unchanged: Knows what the last saves held.
        group: The processes that train.

    Raises:
        CheckpointWriteError: The file system failed; the others are intact.
        PeerLostError: Another process is gone.
    """
    parts, at = Parts(group, snapshot), snapshot.progress
    with parts.committing(), store.staging(at, snapshot.staging) as staging:
        variables = snapshot.write_state(staging.path)
        files = staging.seal(unchanged.write(snapshot, variables))
        checkpoint = store.commit(
            staging,
            files | parts.gather(staging.path),
            metrics=snapshot.metrics,
            finished=snapshot.finished,
            environment=environment,
        )
    unchanged.committed(checkpoint)
    return checkpoint


@dataclass
class Committer:
    """Commits snapshots, prunes, and emits events.

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
        seconds: How long the last save took.
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
    seconds: float = 0.0

    def process(self, snapshot: Snapshot) -> None:
        """Commit a snapshot, or contribute to that, prune, and free its memory.

        Raises:
            CheckpointWriteError: The file system failed.
            PeerLostError: Another process is gone.
        """
        began = self.now()
        try:
            if self.group.index:
                contribute(self.group, self.store.directory, snapshot)
                self.newest = snapshot.progress.step
            else:
                checkpoint = self._commit(snapshot)
                self.newest = snapshot.progress.step
                self._prune(snapshot, checkpoint, began)
        finally:
            snapshot.tensors.release()
            self.seconds = self.now() - began

    def _commit(self, snapshot: Snapshot) -> Checkpoint:
        known = self.environment, self.unchanged
        try:
            return commit(self.store, snapshot, *known, self.group)
        except CheckpointWriteError as error:
            step = snapshot.progress.step
            self.events.emit("save failed", step=step, error=str(error))
            raise

    def _prune(self, snapshot: Snapshot, checkpoint: Checkpoint, began: float) -> None:
        """Delete what is not kept, and record the save.

        Raises:
            CheckpointWriteError: Nothing could be deleted; the checkpoint exists.
        """
        finished, loss = snapshot.finished, snapshot.metrics.get("loss", 0.0)
        # If training ended with NaN (TerminateOnNaN), the user may want to go back.
        prunes = self.prunes and not (finished and not math.isfinite(loss))
        pruned = list[int]()
        try:
            if prunes:
                pruned = self.store.prune(self.keep)
        except CheckpointWriteError as error:
            step = snapshot.progress.step
            self.events.emit("prune failed", step=step, error=str(error))
            raise
        finally:
            seconds = self.now() - began
            self.events.emit(
                "saved",
                **snapshot.progress._asdict(),
                finished=finished,
                nbytes=checkpoint.nbytes,
                seconds=seconds,
                stall=snapshot.stall + (seconds if finished else 0.0),
                pruned=pruned,
                postponed=snapshot.postponed,
            )


class BackgroundWriter:
    """Processes one snapshot at a time, in the background.

    Args:
        process: Called with each, on the writer's thread.
    """

    def __init__(self, process: Callable[[Snapshot], None]) -> None:
        # The first snapshot starts the thread.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="resilient-writer")
        self._process = process
        self._job: Future[None] | None = None
        self._started_in = 0  # which process; a forked one has no thread
        self._hurried = threading.Event()

    @property
    def has_job(self) -> bool:
        """Whether there is a snapshot whose end has not been reported."""
        return self._job is not None

    def start(self, snapshot: Snapshot, *, delay: float = 0.0) -> None:
        """Process a snapshot in the background; the previous one must be over.

        Args:
            snapshot: The snapshot.
            delay: Seconds until that begins, unless somebody hurries it or waits for
                it.
        """
        assert self._job is None
        self._hurried.clear()
        self._started_in = os.getpid()
        self._job = self._thread.submit(self._later, snapshot, delay)

    def busy(self) -> bool:
        """Whether a snapshot is being processed, or about to.

        Raises:
            Exception: What processing the last one raised, once.
        """
        if self._job is not None and not self._job.done():
            return True
        self.wait()
        return False

    def start_now(self) -> None:
        """Start with a delayed snapshot."""
        self._hurried.set()

    def wait(self) -> None:
        """Return when nothing is being processed.

        Raises:
            Exception: What processing the last one raised, once.
        """
        job = self._job
        self.start_now()
        if job is not None and self._started_in == os.getpid():
            job.exception()  # if interrupted while waiting, keep the job
            self._job = None
            job.result()

    @contextlib.contextmanager
    def closing(self, error: BaseException | None) -> Iterator[None]:
        """Afterwards, the thread has ended; an unreported error is kept.

        Args:
            error: What ends training: a failure inside becomes a note of it.
        """
        try:
            yield
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"In addition, {type(failure).__name__}: {failure}")
        finally:
            self.start_now()
            self._thread.shutdown(wait=True)

    def _later(self, snapshot: Snapshot, delay: float) -> None:
        self._hurried.wait(delay)
        self._process(snapshot)
