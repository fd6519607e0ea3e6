"""Shows from outside that training is alive, and where it is.

Training only counts (``beat``); a background thread writes the files, so a hanging disk
does not stop training. A file changes only if training has beaten since. Readers (a
supervisor that detects hangs, a report about a killed process) find one line of JSON.
Anything else, such as a line torn by a crash or by a write in progress, odd values, or
a file that is not regular, reads as None; and only a regular file is written.
"""

import contextlib
import json
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from resilient.progress import Progress
from resilient.serialization.schema import Count, from_json
from resilient.storage.files import SMALL_BYTES, open_file, read_file
from resilient.storage.layout import HEARTBEAT

# A supervisor, which does not know the checkpoint directory, names a file here.
VARIABLE = "RESILIENT_HEARTBEAT"
_WRITE = os.O_WRONLY | os.O_CREAT

# Plausible values, in events as well. A datetime holds years up to 9999, and system
# calls take process ids of 31 bits.
Seconds = Annotated[float, Meta(ge=0, lt=253402300800)]
ProcessId = Annotated[int, Meta(ge=0, lt=1 << 31)]
_Directory = Annotated[str, Meta(pattern=r"\A[^\0]+\Z")]

Phase = Literal["starting", "replaying", "training", "validating", "saving", "ended"]


@dataclass(frozen=True)
class Beat:
    """The last sign of life of a process.

    Attributes:
        attempt: Identifies the attempt, as in ``events.jsonl``.
        host: Where it runs.
        pid: Its process id there.
        directory: The checkpoint directory.
        time: When the sign was written, in Unix seconds.
        count: Signs so far: one per batch, one per replayed element...
        phase: What training was doing.
        step: Batches trained since the start of the run.
        epoch: Epoch in progress, from 0.
        batch: Batches trained in that epoch.
    """

    attempt: str
    host: str
    pid: ProcessId
    directory: _Directory
    time: Seconds
    count: Count
    phase: Phase
    step: Count
    epoch: Count
    batch: Count


class Heartbeat:
    """Counts the signs of one attempt, and writes the last one to files."""

    def __init__(
        self, attempt: str, directory: os.PathLike[str], paths: Sequence[Path]
    ) -> None:
        self._who = {
            "attempt": attempt,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "directory": os.fspath(directory),
        }
        self._paths = list(paths)
        self._written = -1
        self._size = 0
        self.count = 0
        self.phase: Phase = "starting"
        self.progress = Progress(0, 0, 0)

    def beat(self, phase: Phase, progress: Progress | None = None) -> None:
        """Count a sign; this costs next to nothing."""
        self.count += 1
        self.phase = phase
        if progress is not None:
            self.progress = progress

    def write(self) -> None:
        """Write the files if there was a new sign; OSErrors are ignored."""
        count = self.count
        if count == self._written:
            return
        self._written = count
        where = {"phase": self.phase, **self.progress._asdict()}
        line = json.dumps({**self._who, "time": time.time(), "count": count, **where})
        self._size = max(self._size, len(line))  # overwrites all of the line before
        for path in self._paths:
            with (
                contextlib.suppress(OSError),  # must not stop training
                open(open_file(path.parent, path.name, _WRITE), "wb") as file,
            ):
                file.write(line.ljust(self._size).encode() + b"\n")
                file.truncate()


def read(path: str | os.PathLike[str]) -> Beat | None:
    """The last sign in a file; None if there is no readable one."""
    path = Path(path)
    try:
        # Not `schema.parse`, which refuses directory names that are not UTF-8.
        data = json.loads(read_file(path.parent, path.name, SMALL_BYTES))
        return from_json(Beat, data)
    except (OSError, ValueError, RecursionError):
        return None


def last_words(directory: Path) -> dict[str, object] | None:
    """The last sign that another process left in a checkpoint directory, as JSON."""
    beat = read(directory / HEARTBEAT)
    return None if beat is None else asdict(beat)
