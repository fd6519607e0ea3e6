"""Saves and restores the file that a ``ModelCheckpoint`` writes.

Code after a fit loads it, and a later fit may write to the same path (the folds of a
cross-validation). So each checkpoint holds the file as it was then, and a resume
restores it to the script's current path, if something else is there.

Keras overwrites the file in place, so a hard link would not preserve it: the bytes are
read. Files above ``LIMIT`` and remote ones are left as they are, with a warning; files
whose names have fields (``{epoch}``) are left alone as well, since each is a file of
its own.
"""

import os
import re
import secrets
import stat
import string
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from resilient.errors import CheckpointWriteError, warn_not_exact
from resilient.objects.callbacks.special import Action, Arrays
from resilient.serialization import Encoded
from resilient.serialization.decoding import decode
from resilient.serialization.json_values import encode
from resilient.serialization.schema import MalformedError, well_formed

LIMIT = 2 * 2**30  # bytes

# A file changed this recently may change again with the same timestamp.
_SETTLED = 2.0  # seconds


@dataclass(frozen=True)
class _File:
    """A checkpoint's state of the file."""

    content: Any


class ModelFile:
    """The file of a ``ModelCheckpoint`` whose name has no fields."""

    skipped = frozenset[str]()

    def __init__(self, callback: Any, attempts: Sequence[Mapping[str, Any]]) -> None:
        self._callback = callback
        self._warned = False
        self._content: np.ndarray | None = None
        self._seen: tuple[int, ...] | None = None

    def capture(self, arrays: dict[str, np.ndarray], name: str) -> Encoded | None:
        path = self._path()
        content = None if path is None else self._read(path)
        if content is None:
            return None
        return encode({"content": content}, arrays, name)

    def plan(self, saved: Encoded, arrays: Arrays) -> list[Action]:
        state = well_formed(_File, decode(saved, arrays), "a file of ModelCheckpoint")
        content = state.content
        bytewise = isinstance(content, np.ndarray) and content.dtype == np.uint8
        if not bytewise or content.ndim != 1:
            raise MalformedError("a file of ModelCheckpoint is not bytes")
        return [lambda: self._restore(content)]

    def begin_anew(self) -> None:
        """Nothing to undo: the file predates the program, or will be written again."""

    def _path(self) -> Path | None:
        """Its real path, links resolved; None if it is to be left alone."""
        named = self._callback.filepath
        if "://" in named:
            self._warn("it is not a local file")
            return None
        if _has_fields(named):
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

    def _restore(self, content: np.ndarray) -> None:
        path = self._path()
        if path is None:
            return
        there = self._read(path)
        if there is not None and np.array_equal(there, content):
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _replace(path, content)
        except OSError as error:
            raise CheckpointWriteError(
                "The file that ModelCheckpoint wrote cannot be restored.",
                received=f"{path}: {error.strerror}",
                hint="Make room, or allow this user to write there; then run again.",
            ) from error

    def _warn(self, why: str) -> None:
        if not self._warned:
            self._warned = True
            warn_not_exact(
                "after a resume, this file may be from another fit, or from a later "
                "point in this one",
                [f"ModelCheckpoint({self._callback.filepath!r}): {why}"],
            )


def _has_fields(template: str) -> bool:
    """Whether the name has fields for Keras to fill in."""
    return any(field is not None for _, field, *_ in string.Formatter().parse(template))


def _replace(path: Path, content: np.ndarray) -> None:
    """Replace a file atomically."""
    unfinished = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{16}}\.part")
    for other in path.parent.iterdir():
        if unfinished.fullmatch(other.name):  # left by an attempt that was killed here
            other.unlink(missing_ok=True)
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        with open(part, "xb") as file:
            file.write(content.data)
        if path.exists():
            part.chmod(stat.S_IMODE(path.stat().st_mode))
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
