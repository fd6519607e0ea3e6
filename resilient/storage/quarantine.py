"""Holds checkpoints that must not be used: moved, never deleted.

    quarantine/step-00001200-1/reason.json    why, and since when

A damaged entry forbids a fresh start until a good checkpoint is committed, or the user
chooses to start over: until then it is ``open``. The user may delete the directory at
any time.
"""

import json
import os
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from resilient.storage.files import replace_text, sync
from resilient.storage.layout import QUARANTINE, REASON

Kind = Literal["damaged", "superseded", "discarded"]


@dataclass(frozen=True)
class Reason:
    """Why a checkpoint is in quarantine.

    Attributes:
        kind: ``damaged`` if it failed verification, ``superseded`` if an earlier one
            was chosen to resume from, ``discarded`` if the run was started over.
        text: What was found, for people.
        time: When it was moved, ISO 8601 in UTC.
        open: Whether it still forbids a silent fresh start.
    """

    kind: Kind
    text: str
    time: str
    open: bool


@dataclass(frozen=True)
class Entry:
    """A checkpoint in quarantine; one without a readable reason counts as damaged."""

    path: Path
    reason: Reason


def now() -> str:
    """The time, as in all files of a checkpoint directory."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def move(path: Path, kind: Kind, text: str) -> Path:
    """Move a checkpoint into its directory's quarantine.

    The reason is written first, so that one rename moves both.

    Returns:
        Where it is now.

    Raises:
        OSError: If the file system does not allow it; the checkpoint stays.
    """
    quarantine = path.parent / QUARANTINE
    quarantine.mkdir(exist_ok=True)
    if path.is_dir():
        _write(path, Reason(kind, text, now(), open=kind == "damaged"))
    number = 1
    while os.path.lexists(target := quarantine / f"{path.name}-{number}"):
        number += 1
    os.rename(path, target)
    sync(quarantine)
    sync(path.parent)
    return target


def entries(directory: Path) -> list[Entry]:
    """What is in the quarantine of a checkpoint directory, by name."""
    quarantine = directory / QUARANTINE
    if not quarantine.is_dir():
        return []
    paths = sorted(quarantine.glob("step-*"))
    return [Entry(path, _read(path)) for path in paths]


def settle(directory: Path) -> None:
    """Stop damaged entries from forbidding a fresh start."""
    for entry in entries(directory):
        if entry.reason.open and entry.path.is_dir():
            _write(entry.path, replace(entry.reason, open=False))


def _write(entry: Path, reason: Reason) -> None:
    # All of it or nothing: a torn reason would count as open damage.
    replace_text(entry / REASON, json.dumps(asdict(reason), indent=1) + "\n")


def _read(entry: Path) -> Reason:
    try:
        return Reason(**json.loads((entry / REASON).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        # A regular file has no reason: it never was a checkpoint.
        text = f"no readable {REASON} ({type(error).__name__})"
        return Reason("damaged", text, "", open=entry.is_dir())
