"""What is inside a checkpoint: ``run.json``, ``data/`` and ``variables/``.

Composed when a snapshot is taken, written while training goes on, read back when a run
resumes. Everything that is not a tensor is JSON; every tensor is in ``variables/``, in
the backend's own format.
"""

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from resilient.backends.base import Backend, Snapshot
from resilient.checkpoints.checkpoint import Checkpoint, Reader
from resilient.errors import CorruptCheckpointError, describe

JSON = dict[str, Any]

_RUN = "run.json"
_POSITION = "data/process-0-of-1.json"
_VARIABLES = "variables"


@dataclass(frozen=True)
class Record:
    """One checkpoint in memory.

    Attributes:
        run: Callbacks, random state, fingerprint, layout of the variables...
        position: Where the data is, encoded.
        tensors: Every tensor, by name.
    """

    run: JSON
    position: Any
    tensors: dict[str, np.ndarray]


@dataclass(frozen=True)
class Content:
    """A checkpoint that is yet to be written.

    Attributes:
        run: As in ``Record``; training changes nothing in it any more.
        position: The same.
        snapshot: The tensors.
    """

    run: JSON
    position: Any
    snapshot: Snapshot

    def write(self, directory: str) -> None:
        """Fill a staging directory; committing it is the store's business."""
        root = Path(directory)
        for path, content in ((_RUN, self.run), (_POSITION, self.position)):
            (root / path).parent.mkdir(exist_ok=True)
            text = json.dumps(content, allow_nan=False)
            (root / path).write_text(text, encoding="utf-8")
        (root / _VARIABLES).mkdir()
        self.snapshot.write(str(root / _VARIABLES))

    def release(self) -> None:
        """Let go of what the snapshot holds."""
        self.snapshot.release()


def reader(backend: Backend) -> Reader[Record]:
    """Reads checkpoints whose tensors are in the format of this backend."""
    compares = backend.compares and f"{_VARIABLES}/{backend.compares}"
    return Reader(partial(_read, backend), compares)


def _read(backend: Backend, checkpoint: Checkpoint) -> Record:
    """Read a checkpoint whole.

    Raises:
        CorruptCheckpointError: Tensors and their list in ``run.json`` disagree.
    """
    run, position = (
        json.loads((checkpoint.path / path).read_text(encoding="utf-8"))
        for path in (_RUN, _POSITION)
    )
    tensors = backend.read(str(checkpoint.path / _VARIABLES))
    expected = {v["name"] for v in run["variables"]} | set(run["arrays"])
    if expected != set(tensors):
        raise CorruptCheckpointError(
            describe(
                f"{checkpoint.path} does not hold the tensors that it lists.",
                f"missing: {sorted(expected - set(tensors))}, "
                f"unexpected: {sorted(set(tensors) - expected)}",
                "Resume from another step, for example "
                "resume=<step> with one that `resilient ls` shows.",
            )
        )
    return Record(run, position, tensors)
