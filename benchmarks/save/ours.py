"""resilient, piece by piece: a snapshot, its commit on a thread, a verified read."""

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import keras
import numpy as np

from resilient.backends import HeldTensors, get_backend, read
from resilient.policies import latest
from resilient.progress import Progress
from resilient.state.variables import leaves, live_tensors
from resilient.storage.checkpoint import Checkpoint
from resilient.storage.store import Store
from resilient.training.state import no_garbage_collection


class Ours:
    """What `resilient.fit` does at a save and at a resume."""

    name = "resilient"
    flushes = True
    background = True

    def __init__(self, model: keras.Model, directory: Path) -> None:
        self.directory = directory
        self._model = model
        self._backend = get_backend()
        self._store = Store(directory)
        self._writer = ThreadPoolExecutor(1)
        self._snapshot: HeldTensors | None = None
        self._written: Future[None] | None = None
        self._step = 0

    @no_garbage_collection()
    def save(self) -> None:
        """Take a snapshot, hand it to the writer."""
        tensors = live_tensors(self._model, leaves(self._model))
        self._snapshot = self._backend.snapshot(tensors, reuse=self._snapshot)
        self._step += 1
        self._written = self._writer.submit(self._commit, self._snapshot, self._step)

    def wait(self) -> None:
        """Until it is committed."""
        self._written.result()

    @no_garbage_collection()
    def restore(self) -> None:
        """Read the newest checkpoint, verified, into the model."""
        found = self._store.load_newest(self._read)
        if found is None:
            raise FileNotFoundError(self.directory)
        saved = found[1]
        for leaf in leaves(self._model):
            self._backend.assign(leaf.target, saved[leaf.name])

    def tidy(self) -> None:
        """Keep the newest, as `keep=1` does."""
        self._store.prune(latest(1))

    def close(self) -> None:
        """Drop the snapshot's memory."""
        self._writer.shutdown()
        self._snapshot = None

    def _read(self, checkpoint: Checkpoint) -> dict[str, np.ndarray]:
        return read(self._backend.name, str(checkpoint.path))

    def _commit(self, snapshot: HeldTensors, step: int) -> None:
        with self._store.staging(Progress(step, 0, step)) as staging:
            snapshot.write(str(staging.path))
            self._store.commit(
                staging, staging.seal([]), metrics={}, finished=False, environment={}
            )
        snapshot.release()


KINDS = [Ours]
