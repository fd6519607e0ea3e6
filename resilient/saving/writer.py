"""What the writer's thread does: it writes snapshots, commits them, and prunes.

It handles one snapshot at a time, which training hands over before it continues.
Nothing queues up here: another one has to wait or be offered later. An error is kept
until the training thread asks for it. The store makes a commit all or nothing
(``storage/commit``).
"""

import contextlib
import logging
import math
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import xxhash

from resilient.backends.arrays import as_bytes
from resilient.distributed.group import ALONE, Group
from resilient.errors import CheckpointWriteError
from resilient.policies import KeepPolicy
from resilient.saving.parts import Parts, contribute
from resilient.saving.snapshot import UNCHANGED, VARIABLES, Snapshot
from resilient.storage.checkpoint import Checkpoint
from resilient.storage.files import open_file
from resilient.storage.manifest import FileRecord, record
from resilient.storage.store import Store
from resilient.telemetry.events import Events

logger = logging.getLogger(__name__)

_LARGE = 1 << 18  # bytes; smaller tensors are written before they are compared
_WORTH = 8 << 20  # bytes of unchanged tensors that are worth files of their own
_INTERVAL = 16  # saves; then tensors that have changed are compared once more
# Of each tensor: its type, shape and checksum.
_Digests = dict[str, tuple[str, tuple[int, ...], bytes]]


class Unchanged:
    """Lets two checkpoints share the files of tensors that training does not change.

    Large tensors that were the same at the last save (frozen layers, embeddings that no
    batch touched) are in a folder of their own. Where the checkpoint before the last
    has the same ones, its files are linked: nothing is written, and nothing is read
    back.

        save 1  all              save 4  links those of save 2
        save 2  unchanged anew   save 5  links those of save 3
        save 3  unchanged anew   save 6  links those of save 4, once save 2 is pruned

    So neighbours share nothing (``storage/prune`` sees to it when one is deleted), and
    at most two checkpoints share a file. It is read before it is linked: one that is
    damaged is written anew.

    What is unchanged is shown by the checksum of the bytes: nothing else shows every
    write (ARCHITECTURE.md).
    """

    def __init__(self) -> None:
        self._saves = 0
        self._last: _Digests = {}
        self._group: _Digests = {}  # unchanged, in the files written last
        # With their unchanged tensors.
        self._committed = deque[tuple[Checkpoint, _Digests]](maxlen=2)

    def write(
        self, snapshot: Snapshot, directory: str
    ) -> tuple[list[str], dict[str, FileRecord]]:
        """Write all tensors of a snapshot.

        Args:
            snapshot: The snapshot.
            directory: The staging directory, with one for its tensors.

        Returns:
            The files that were written; and those that were linked, which are on disk
            already, and read. By path in the staging directory.

        Raises:
            OSError: The file system failed.
        """
        # If this save fails, what is known of the tensors is still true.
        tensors, alone = snapshot.tensors, snapshot.part.count == 1
        self._group = self._unchanged(tensors.arrays) if alone else {}
        if not self._group:
            return tensors.write(directory, snapshot.part, below=VARIABLES), {}
        changed = [name for name in tensors.arrays if name not in self._group]
        written = tensors.write(directory, names=changed, below=VARIABLES)
        source = self._source(snapshot.progress.step)
        below = f"{VARIABLES}/{UNCHANGED}"
        folder = os.path.join(directory, below)
        if source is not None:
            try:
                return written, _link(source, directory)
            except OSError as error:
                logger.info("Unchanged tensors are written again: %s", error)
                shutil.rmtree(folder, ignore_errors=True)
        os.mkdir(folder)
        same = tensors.write(directory, names=list(self._group), below=below)
        return [*written, *same], {}

    def committed(self, checkpoint: Checkpoint) -> None:
        """Note that what was written last is this checkpoint."""
        self._committed.append((checkpoint, self._group))

    def _unchanged(self, arrays: Mapping[str, np.ndarray]) -> _Digests:
        """The tensors that were the same at the last save, if that is worth it."""
        last = self._last
        every = (
            self._saves % _INTERVAL < 2
        )  # two in a row: to compare one with the other
        self._saves += 1
        self._last, nbytes = {}, 0
        for name in arrays if every else self._group:
            array = arrays.get(name)
            # Of a tensor in shards, it is no array.
            if isinstance(array, np.ndarray) and array.nbytes >= _LARGE:
                checksum = xxhash.xxh3_128_digest(as_bytes(array).data)
                found = str(array.dtype), array.shape, checksum
                self._last[name] = found
                nbytes += array.nbytes if last.get(name) == found else 0
        same = {name: x for name, x in self._last.items() if last.get(name) == x}
        return same if nbytes >= _WORTH else {}

    def _source(self, step: int) -> Checkpoint | None:
        """The checkpoint whose files the one of this step may link."""
        if len(self._committed) == 2:
            (source, group), (last, _) = self._committed
            # Without the last one, its neighbour would be linked.
            there = source.step < last.step < step and os.path.exists(last.path)
            if there and group == self._group:
                return source
        return None


def _link(source: Checkpoint, directory: str) -> dict[str, FileRecord]:
    """Link all files with unchanged tensors, and return their records.

    Raises:
        OSError: One has another link or other bytes, or the system makes no links.
    """
    records = {}
    for name, expected in source.files.items():
        if not name.startswith(f"{VARIABLES}/{UNCHANGED}/"):
            continue
        new = os.path.join(directory, name)
        os.makedirs(os.path.dirname(new), exist_ok=True)
        os.link(source.path / name, new, follow_symlinks=False)
        with open(open_file(Path(directory), name), "rb", buffering=0) as file:
            found = os.fstat(file.fileno())
            if found.st_nlink != 2:
                raise OSError(f"{name} has more links, or they are not counted")
            records[name] = record(file, found.st_size)
        if not records[name].matches(expected):
            logger.warning(
                "%s is damaged. Its tensors are written again.", source.path / name
            )
            raise OSError(f"{name} does not match its checksum")
    return records


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
        state = snapshot.write_state(staging.path)
        tensors, linked = unchanged.write(snapshot, os.fspath(staging.path))
        files = staging.seal([*state, *tensors], linked)
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
        committed: Called after each commit, on the writer's thread.
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
    committed: Callable[[], None] = lambda: None
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
                self.committed()
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
