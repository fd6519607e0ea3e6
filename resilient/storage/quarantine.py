"""Holds checkpoints that must not be used: moved, never deleted.

    quarantine/step-00001200-1                what had the name of a checkpoint
    quarantine/step-00001200-1.reason.json    why it is here, and since when

Damage forbids a fresh start until a good checkpoint is committed, or the user chooses
to start over: until then an entry is ``open``. So is one whose reason cannot be read,
and a quarantine that is not a real directory. The user may delete the directory at any
time.

A reason lies beside its entry, so that nothing is ever written into the entry, which
may be a link to somebody else's directory.
"""

import errno
import json
import os
import stat
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from resilient.serialization.schema import SchemaError, from_json, parse
from resilient.storage import directories, files, layout
from resilient.storage.manifest import now

Kind = Literal["damaged", "superseded", "discarded"]


@dataclass(frozen=True)
class Reason:
    """Why a checkpoint is in quarantine.

    Attributes:
        kind: ``damaged`` if it failed verification, ``superseded`` if an earlier one
            was chosen to resume from, ``discarded`` if the run was started over.
        text: What was found, in words.
        time: When it was moved, ISO 8601 in UTC.
        open: Whether it still forbids a silent fresh start.
    """

    kind: Kind
    text: str
    time: str
    open: bool


@dataclass(frozen=True)
class Entry:
    """An entry in quarantine; without a readable reason it counts as damaged."""

    path: Path
    reason: Reason


def move(path: Path, kind: Kind, text: str) -> Path:
    """Move a checkpoint, or whatever has such a name, into its directory's quarantine.

    The reason is written first, so that a kill leaves no entry without one.

    Returns:
        Where it is now.

    Raises:
        OSError: If the file system does not allow it; the checkpoint stays.
    """
    quarantine = path.parent / layout.QUARANTINE
    if not _is_there(quarantine):
        quarantine.mkdir()
    files.sync(path.parent)  # otherwise a power cut might lose it, and its contents
    target = quarantine / _free_name(quarantine, path.name)
    _write(target, Reason(kind, text, now(), open=kind == "damaged"))
    directories.move(path, target)
    files.sync(quarantine)
    files.sync(path.parent)
    return target


def entries(directory: Path) -> list[Entry]:
    """The entries in the quarantine of a checkpoint directory, by name."""
    quarantine = directory / layout.QUARANTINE
    try:
        if not _is_there(quarantine):
            return []
        return [Entry(path, _read(path)) for path in layout.quarantined(quarantine)]
    except OSError as error:
        return [Entry(quarantine, _unknown(error.strerror or str(error)))]


def settle(directory: Path) -> None:
    """Stop damaged entries from forbidding a fresh start.

    Raises:
        OSError: If the file system does not allow it.
    """
    if not _is_there(directory / layout.QUARANTINE):
        return
    for entry in entries(directory):
        if entry.reason.open:
            _write(entry.path, replace(entry.reason, open=False))


def _is_there(quarantine: Path) -> bool:
    """Whether there is one.

    Raises:
        OSError: It is something else: nothing is moved or written through a link.
    """
    try:
        mode = quarantine.lstat().st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(mode):
        what = (
            "it is a symbolic link" if stat.S_ISLNK(mode) else ("it is not a directory")
        )
        raise NotADirectoryError(errno.ENOTDIR, what, os.fspath(quarantine))
    return True


def _free_name(quarantine: Path, name: str) -> str:
    """A free numbered name, found in few tries however many are taken."""

    def taken(number: int) -> bool:
        return os.path.lexists(quarantine / f"{name}-{number}")

    low, high = 0, 1
    while taken(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if taken(middle) else (low, middle)
    return f"{name}-{high}"


def _write(entry: Path, reason: Reason) -> None:
    # Atomic: a torn reason would count as open damage.
    path = entry.with_name(entry.name + layout.REASON)
    files.replace_text(path, json.dumps(asdict(reason), indent=1) + "\n")


def _read(entry: Path) -> Reason:
    name = entry.name + layout.REASON
    try:
        raw = files.read_file(entry.parent, name, files.SMALL_BYTES)
        return from_json(Reason, parse(raw))
    except FileNotFoundError:
        return _unknown(f"{name} is missing")
    except OSError as error:
        return _unknown(f"{name} cannot be read: {error.strerror}")
    except SchemaError as error:
        return _unknown(f"{name} is malformed: {error}")


def _unknown(text: str) -> Reason:
    return Reason("damaged", text, "", open=True)
