"""Combines the parts that several processes write into one checkpoint.

Each part is staged in its own directory, with the final names of its files, and flushed
to disk. When all parts are complete, process 0 moves their files beside its own and
commits: a kill before that leaves directories that no reader looks at.

A library may write through collectives, so no process begins before all can.
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from resilient.distributed.group import Group
from resilient.errors import CheckpointWriteError, NotSupportedError, message
from resilient.progress import Progress
from resilient.serialization import Encoded
from resilient.serialization.schema import SchemaError, from_json
from resilient.storage import commit, layout, signature
from resilient.storage.file_record import FileRecord
from resilient.storage.files import is_inside

# As ``commit.Write``; calls its argument when it is about to write tensors.
Write = Callable[[str, Callable[[], None]], Mapping[str, FileRecord] | None]

_SAME_VERSION = "Run the same version of keras-resilient in all processes."


class OthersFailedError(Exception):
    """Another process cannot write its part; it reports the reason itself."""


class Parts:
    """The parts of one checkpoint.

    Args:
        group: The processes.
        name: The name of process 0's staging directory.
    """

    def __init__(self, group: Group, name: str) -> None:
        self.name = name
        self._group = group
        self._were_ready = False
        self._parts: list[Encoded] | None = None

    def ready(self) -> None:
        """Wait until all processes are about to write tensors.

        Raises:
            OthersFailedError: One of them failed.
        """
        if not self._all_ready(mine=True):
            raise OthersFailedError

    def _all_ready(self, *, mine: bool) -> bool:
        self._were_ready = True
        said = self._group.gather("ready", mine)
        return bool(self._group.broadcast("ready", all(said)))

    # At process 0. ----------------------------------------------------------------

    def add_to(self, staging: Path) -> dict[str, FileRecord]:
        """Move the others' files into the staging directory, and return their records.

        Raises:
            CheckpointWriteError: One of the others could not write its part.
            PeerLostError: One of them is gone.
        """
        records = dict[str, FileRecord]()
        for index, part in enumerate(self._collected()[1:], 1):
            if part["error"] is not None:
                raise CheckpointWriteError(part["error"])
            own = staging.parent / layout.part_name(self.name, index)
            found = _records(index, part["files"])
            for path in found:
                target = staging / path
                target.parent.mkdir(parents=True, exist_ok=True)
                os.rename(own / path, target)
            records |= found
            shutil.rmtree(own, ignore_errors=True)
        return records

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """Tell the others how the commit inside ended."""
        try:
            yield
        except Exception as error:
            if not self._were_ready:
                self._all_ready(mine=False)
            said = [part["error"] for part in self._collected()[1:] if part["error"]]
            if isinstance(error, OthersFailedError):
                self._group.broadcast("committed", said[0])
                raise CheckpointWriteError(said[0]) from None
            self._group.broadcast("committed", str(error))
            raise
        self._group.broadcast("committed")

    def _collected(self) -> list[Encoded]:
        if self._parts is None:
            self._parts = self._group.gather("part")
        return self._parts

    # At the others. ---------------------------------------------------------------

    def contribute(self, directory: Path, progress: Progress, write: Write) -> None:
        """Write this process's part, and wait until the checkpoint is committed.

        Args:
            directory: The checkpoint directory.
            progress: Where the run is.
            write: Fills the directory whose path it gets.

        Raises:
            CheckpointWriteError: It was not committed; earlier checkpoints are intact.
            PeerLostError: Process 0 is gone.
        """
        staging = directory / layout.part_name(self.name, self._group.index)
        mine: Exception | None = None
        part: Encoded = {"error": None, "files": {}}
        try:
            records = commit.stage(
                staging, progress, lambda path: write(path, self.ready)
            )
            part["files"] = {path: vars(record) for path, record in records.items()}
        except Exception as error:
            if not self._were_ready:
                self._all_ready(mine=False)
            if not isinstance(error, OthersFailedError):
                mine, part["error"] = error, _text(self._group, error)
        self._group.gather("part", part)
        failure = self._group.broadcast("committed")
        if mine is None and failure is None:
            return
        shutil.rmtree(staging, ignore_errors=True)
        raise mine or CheckpointWriteError(failure)


def _records(index: int, said: Encoded) -> dict[str, FileRecord]:
    """Another process's report on its files, fully validated."""
    try:
        records = from_json(dict[str, FileRecord], said)
    except SchemaError as error:
        raise CheckpointWriteError(
            f"Process {index} did not report which files it wrote.",
            received=error,
            hint=_SAME_VERSION,
        ) from None
    if outside := [path for path in records if not is_inside(path)]:
        raise CheckpointWriteError(
            f"Process {index} reported files outside its part of the checkpoint.",
            received=outside[0],
            hint=_SAME_VERSION,
        )
    unsigned = any(record.sha256 is None for record in records.values())
    if unsigned and signature.has_key():
        raise NotSupportedError(
            f"Process {index} has no {signature.VARIABLE}, but process 0 does.",
            hint=f"Set {signature.VARIABLE} to the same key for all processes.",
        )
    return records


def _text(group: Group, error: Exception) -> str:
    if isinstance(error, CheckpointWriteError):
        return f"In process {group.index} of {group.count}: {error}"
    return message(
        f"Process {group.index} of {group.count} failed to write its part of a "
        "checkpoint. Earlier checkpoints are intact.",
        received=f"{type(error).__name__}: {error}",
        hint="See the traceback of that process.",
    )
