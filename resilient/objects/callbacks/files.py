"""Keeps the files that ``ModelCheckpoint`` and ``CSVLogger`` write.

Code after a fit loads the one, and a later fit may write to the same path (the folds of
a cross-validation); Keras empties the other when training begins. So each checkpoint
holds the file as it was then, and a resume restores it to the script's current path, if
something else is there.

Keras writes the files in place, so a hard link would not preserve them: the bytes are
read. Files above ``LIMIT`` and remote ones stay as they are, with a warning; models
whose names have fields (``{epoch}``) do so as well, since each is a file of its own.
"""

import csv
import os
import stat
import string
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from resilient.errors import CheckpointWriteError
from resilient.objects.callbacks.special import Special, replacing
from resilient.serialization.schema import MalformedError

LIMIT = 2 * 2**30  # bytes

# A file changed this recently may change once more with the same timestamp.
_SETTLED = 2.0  # seconds


@dataclass(frozen=True)
class _State:
    """A checkpoint's state of a file.

    Attributes:
        content: The bytes.
        written: Of a ``CSVLogger``: whether it has written rows.
        keys: Its columns.
        append_header: Whether it is to write their names.
    """

    content: Any
    written: bool = False
    keys: list[str] | None = None
    append_header: bool = True


class ModelFile(Special):
    """The file of a ``ModelCheckpoint`` whose name has no fields."""

    record = _State
    place = "filepath"

    def __init__(self, callback: Any, attempts: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(callback, attempts)
        self._content: np.ndarray | None = None
        self._seen: tuple[int, ...] | None = None

    def state(self) -> dict[str, Any] | None:
        path = self._path()
        content = None if path is None else self._read(path)
        return None if content is None else {"content": content}

    def check(self, state: _State) -> None:
        content = state.content
        bytewise = isinstance(content, np.ndarray) and content.dtype == np.uint8
        if not bytewise or content.ndim != 1:
            raise MalformedError(f"a file of {type(self._callback).__name__}: no bytes")

    def _path(self) -> Path | None:
        """Its real path, links resolved; None if it is not kept."""
        named = self._given()
        if not self._is_local() or _has_fields(named):
            return None
        return Path(os.path.realpath(named.format()))

    def _read(self, path: Path) -> np.ndarray | None:
        """Its bytes; None if it does not exist or cannot be kept."""
        try:
            found = path.stat()
            if not stat.S_ISREG(found.st_mode):
                self._warn("it is not a regular file")
                return None
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

    def _replace(self, path: Path, content: np.ndarray) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(content.data)

    def restore(self, state: _State) -> None:
        path = self._path()
        there = None if path is None else self._read(path)
        if path is None or (there is not None and np.array_equal(there, state.content)):
            return
        try:
            self._replace(path, state.content)
        except OSError as error:
            raise CheckpointWriteError(
                "A file that a callback wrote cannot be restored.",
                received=f"{path}: {error.strerror}",
                hint="Make room, or allow this user to write there; then run again.",
            ) from error


class CsvFile(ModelFile):
    """The file of a ``CSVLogger``, and its columns."""

    skipped = frozenset({"csv_file", "writer", "keys", "append_header"})
    place = "filename"

    def begin_anew(self) -> None:
        path = self._path()
        if not self._attempts or path is None:
            return
        found, started = path.stat(), min(a["started"] for a in self._attempts)
        if found.st_size and found.st_mtime >= started:
            self._warn("it has rows of an attempt that died before a checkpoint")

    def _path(self) -> Path | None:
        file = self._callback.csv_file
        if file is None or file.closed or not self._is_local():
            return None
        file.flush()
        return Path(os.path.realpath(file.name))

    def state(self) -> dict[str, Any] | None:
        file, callback = super().state(), self._callback
        if file is None and self._path() is not None:
            self._warn("it is not there any more")
        return file and {
            **file,
            "written": callback.writer is not None,
            "keys": callback.keys,
            "append_header": callback.append_header,
        }

    def _replace(self, path: Path, content: np.ndarray) -> None:
        self._callback.csv_file.close()
        super()._replace(path, content)
        self._callback.csv_file = open(path, "a")  # noqa: SIM115

    def restore(self, state: _State) -> None:
        callback = self._callback
        if self._path() is None:
            return
        super().restore(state)
        callback.keys, callback.append_header = state.keys, state.append_header
        callback.writer = None
        if state.written:
            # Otherwise Keras creates it with the next row, and repeats the header.
            callback.writer = csv.DictWriter(
                callback.csv_file,
                fieldnames=["epoch", *(state.keys or [])],
                delimiter=callback.sep,
            )


def _has_fields(template: str) -> bool:
    """Whether the name has fields for Keras to fill in."""
    return any(field is not None for _, field, *_ in string.Formatter().parse(template))
