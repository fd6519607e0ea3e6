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
    names = [other.name.rpartition("-") for other in layout.quarantined(quarantine)]
    numbers = [int(number) for name, _, number in names if name == path.name]
    target = quarantine / f"{path.name}-{max(numbers, default=0) + 1}"
    _write(target, Reason(kind, text, now(), open=kind == "damaged"))
    directories.move(path, target)
    files.sync(quarantine, path.parent)
    return target


def entries(directory: Path) -> dict[Path, Reason]:
    """The entries in the quarantine of a checkpoint directory, by name.

    One without a readable reason counts as damaged.
    """
    quarantine = directory / layout.QUARANTINE
    try:
        there = layout.quarantined(quarantine) if _is_there(quarantine) else []
        return {path: _read(path) for path in there}
    except OSError as error:
        return {quarantine: _unknown(error.strerror or str(error))}


def settle(directory: Path) -> None:
    """Stop damaged entries from forbidding a fresh start.

    Raises:
        OSError: If the file system does not allow it.
    """
    if _is_there(directory / layout.QUARANTINE):
        for path, reason in entries(directory).items():
            if reason.open:
                _write(path, replace(reason, open=False))


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
        kind = "a symbolic link" if stat.S_ISLNK(mode) else "not a directory"
        raise NotADirectoryError(errno.ENOTDIR, f"it is {kind}", os.fspath(quarantine))
    return True


def _write(entry: Path, reason: Reason) -> None:
    # Atomic: a torn reason would count as open damage.
    path = entry.with_name(entry.name + layout.REASON)
    text = json.dumps(asdict(reason), indent=1) + "\n"
    files.replace_file(path, text.encode())


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
