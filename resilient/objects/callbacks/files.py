"""Keeps the files that Keras's callbacks write, but for TensorBoard's.

Code after a fit loads the file of a ``ModelCheckpoint``, and a later fit may write to
the same path (the folds of a cross-validation); Keras empties that of a ``CSVLogger``
when training begins. So each checkpoint
holds the file as it was then, and a resume restores it to the script's current path, if
something else is there.

Keras writes the files in place, so a hard link would not preserve them: the bytes are
read. Files above ``LIMIT`` and remote ones stay as they are, with a warning; models
whose names have fields (``{epoch}``) do so as well, since each is a file of its own.
"""

import contextlib
import csv
import os
import shutil
import string
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from resilient.errors import CheckpointWriteError
from resilient.objects.callbacks.special import Special

LIMIT = 2 * 2**30  # bytes

# A file changed this recently may change once more with the same timestamp.
_SETTLED = 2.0  # seconds


class ModelFile(Special):
    """The file of a ``ModelCheckpoint`` whose name has no fields."""

    place = "filepath"

    def __init__(self, callback: Any, attempts: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(callback, attempts)
        self._content: np.ndarray | None = None
        self._seen: tuple[int, ...] | None = None

    def state(self) -> dict[str, Any] | None:
        path = self._path()
        content = None if path is None else self._read(path)
        return None if content is None else {"content": content}

    def restore(self, state: dict[str, Any]) -> None:
        path, content = self._path(), state["content"]
        if path is None or np.array_equal(self._read(path), content):
            return
        try:
            self._write(path, content)
        except OSError as error:
            raise CheckpointWriteError(
                "A file that a callback wrote cannot be restored.",
                received=f"{path}: {error.strerror}",
                hint="Make room, or allow this user to write there; then run again.",
            ) from error

    def _path(self) -> Path | None:
        """Its real path, links resolved; None if it is not kept."""
        named = self._given()
        fields = [field for _, field, *_ in string.Formatter().parse(named)]
        if not self._is_local() or any(field is not None for field in fields):
            return None
        return Path(os.path.realpath(named.format()))

    def _read(self, path: Path) -> Any:
        """Its bytes; None if it does not exist or cannot be kept."""
        try:
            found = path.stat()
            if found.st_size > LIMIT:
                self._warn(f"it has {found.st_size:,} bytes, more than {LIMIT:,}")
                return None
            seen = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
            if self._content is None or seen != self._seen:
                self._content = np.fromfile(path, np.uint8)
                self._content.flags.writeable = False  # so that no snapshot copies it
                settled = found.st_mtime < time.time() - _SETTLED
                self._seen = seen if settled else None
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self._warn(f"it cannot be read ({error.strerror})")
            return None
        return self._content

    def _write(self, path: Path, content: np.ndarray) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".{path.name}.part")
        new.unlink(missing_ok=True)  # of an attempt that was killed here
        with open(new, "xb") as file:
            file.write(content.data)
        with contextlib.suppress(FileNotFoundError):
            shutil.copymode(path, new)
        os.replace(new, path)


class CsvFile(ModelFile):
    """The file of a ``CSVLogger``, and whether rows follow those that it has."""

    skipped = frozenset({"csv_file", "writer"})
    place = "filename"

    def begin_anew(self, began: float) -> None:
        path = self._path()
        found = None if path is None else path.stat()
        if found is not None and found.st_size and found.st_mtime >= began:
            self._warn("it has rows of an attempt that died before a checkpoint")

    def state(self) -> dict[str, Any] | None:
        found = super().state()
        if found is None and self._path() is not None:
            self._warn("it is not there any more")
        return found and {**found, "written": self._callback.writer is not None}

    def restore(self, state: dict[str, Any]) -> None:
        callback = self._callback
        if self._path() is None:
            return
        super().restore(state)
        callback.writer = None
        if state["written"]:
            # Otherwise Keras creates it with the next row, and repeats the header.
            names = ["epoch", *(callback.keys or [])]
            file, between = callback.csv_file, callback.sep
            callback.writer = csv.DictWriter(file, names, delimiter=between)

    def _path(self) -> Path | None:
        file = self._callback.csv_file
        if file is None or file.closed or not self._is_local():
            return None
        file.flush()
        return Path(os.path.realpath(file.name))

    def _write(self, path: Path, content: np.ndarray) -> None:
        file = self._callback.csv_file
        file.seek(0)
        file.truncate()
        file.buffer.write(content.data)
        file.flush()


class OrbaxSteps(Special):
    """The directory of an ``OrbaxCheckpoint`` callback: the steps that it wrote.

    A snapshot waits until they are written and records their numbers. A resume deletes
    later ones: the callback writes them once more, and Orbax refuses an existing step.
    Remote directories are not touched.
    """

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
