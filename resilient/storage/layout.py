"""The names in a checkpoint directory.

    step-00001200/              a checkpoint, if and only if its manifest verifies
    step-00001200.tmp-<id>/     being written, or being deleted; stale after a kill
    step-00001200.tmp-<id>-<k>/ the same, by process k of several
    step-00001200.old-<id>/     the former checkpoint of a step that is being replaced
    quarantine/                 what must not be used, and beside it the reason
    events.jsonl                what happened, one JSON object a line
    events-<k>.jsonl            the same, of process k of several
    witness                     what training left of its last steps, for a resume
    witness-<k>                 the same, of process k of several
    heartbeat                   the last sign of life of a run, one line of JSON
    rollbacks.json              which batches this run leaves out, and why
    shared-<id>                 for a moment: do all processes see the same directory?
    probe-<id>/                 for a moment: what can this file system do?
    save, stop                  touched by somebody who asks the living run for it
    lock                        held by the living run
    remote.json                 which run in an object store this is a copy of
    compiled/                   what a backend compiled, for the next start

Other names are left alone. Paths that are not local directories are refused here,
before anything is created.
"""

import contextlib
import os
import re
import uuid
from collections.abc import Iterator
from pathlib import Path

from resilient.errors import NotSupportedError, message
from resilient.serialization.redaction import redacted
from resilient.storage import files, refusals

QUARANTINE = "quarantine"
EVENTS = "events.jsonl"
LOCK = "lock"
HEARTBEAT = "heartbeat"
ROLLBACKS = "rollbacks.json"
REMOTE = "remote.json"
COMPILED = "compiled"
SAVE, STOP = "save", "stop"
MANIFEST = "manifest.json"
REASON = ".reason.json"  # follows the name of its entry

LAST_STEP = 10**15 - 1

# The only name of each step, in ASCII: other spellings of the number are not ours.
_STEP = r"step-([0-9]{8}|[1-9][0-9]{8,14})"
_COMMITTED = re.compile(_STEP)
_REPLACED = re.compile(_STEP + r"\.old-[0-9a-f]{10,}")
_QUARANTINED = re.compile(_STEP + r"-[0-9]+")
_EVENTS = re.compile(r"events(-([0-9]+))?\.jsonl")
_TEMPORARY = re.compile(
    _STEP + r"\.tmp-[0-9a-f]{10,}(-[0-9]+)?"
    r"|(rollbacks\.json|remote\.json|events(-[0-9]+)?\.jsonl)\.tmp-[0-9a-f]{16}"
    r"|(shared|probe)-[0-9a-f]{16}"
)
_OTHERS = (QUARANTINE, COMPILED, HEARTBEAT, ROLLBACKS, REMOTE, SAVE, STOP, LOCK)
_OURS = re.compile(
    "|".join([_STEP, _REPLACED.pattern, _TEMPORARY.pattern, _EVENTS.pattern])
    + r"|witness(-[0-9]+)?|"
    + "|".join(map(re.escape, _OTHERS))
)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def committed_name(step: int) -> str:
    """Name of the checkpoint of a step; sorts by step up to 99,999,999."""
    return f"step-{step:08d}"


def staging_name(step: int) -> str:
    """A fresh name that no reader takes for a checkpoint."""
    return f"{committed_name(step)}.tmp-{uuid.uuid4().hex[:12]}"


def part_name(staging: str, process: int) -> str:
    """Where process k of several writes its part of what process 0 stages."""
    return f"{staging}-{process}"


def shared_name(identity: str) -> str:
    """A file by which processes verify that they share the directory."""
    return f"shared-{identity}"


def events_name(process: int) -> str:
    """Where a process records events; process 0 uses the name for a single process."""
    return EVENTS.replace(".", f"-{process}.") if process else EVENTS


def witness_name(process: int) -> str:
    """Where a process leaves words of its steps."""
    return f"witness-{process}" if process else "witness"


def events_names(directory: Path) -> list[str]:
    """The files of events, of all processes."""
    return [name for name in _names(directory) if _EVENTS.fullmatch(name)]


def events_process(name: str) -> int | None:
    """The process that records events under this name; None: no process does."""
    found = _EVENTS.fullmatch(name)
    return found and int(found[2] or 0)


def replaced_name(step: int) -> str:
    """A fresh name for the former checkpoint of a step, while it is replaced."""
    return f"{committed_name(step)}.old-{uuid.uuid4().hex[:12]}"


def probe_name() -> str:
    """A fresh name for testing the file system."""
    return f"probe-{uuid.uuid4().hex[:16]}"


def find_step(name: str) -> int | None:
    """The step of the checkpoint with this name; None if it is no checkpoint's."""
    match = _COMMITTED.fullmatch(name)
    return int(match[1]) if match else None


def committed_steps(directory: Path) -> list[int]:
    """Steps of the checkpoints by name, ascending; opens nothing."""
    steps = map(find_step, _names(directory))
    return sorted(step for step in steps if step is not None)


def temporary_paths(directory: Path) -> list[Path]:
    """What was being written or deleted, and temporary files."""
    return [directory / n for n in _names(directory) if _TEMPORARY.fullmatch(n)]


def replaced_paths(directory: Path) -> Iterator[tuple[Path, Path]]:
    """Former checkpoints that were being replaced, each with its former path."""
    for name in _names(directory):
        if match := _REPLACED.fullmatch(name):
            yield directory / name, directory / committed_name(int(match[1]))


def quarantined(quarantine: Path) -> list[Path]:
    """Entries by name, without the reasons."""
    return [quarantine / n for n in _names(quarantine) if _QUARANTINED.fullmatch(n)]


def _names(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except FileNotFoundError:
        return []
    except OSError as error:
        files.require_readable(error)
        raise


def foreign_names(directory: Path) -> list[str]:
    """Foreign entries."""
    return [name for name in _names(directory) if not _OURS.fullmatch(name)]


def leads_nowhere(path: Path) -> bool:
    """Whether it is a link to a missing target: an unmounted disk, say."""
    return path.is_symlink() and not os.path.exists(path)


def local_directory(directory: str | os.PathLike[str]) -> Path:
    """Check the path of a checkpoint directory, which need not exist yet.

    The result is absolute, so that a script may change its working directory.

    Raises:
        TypeError: If it is not a path.
        ValueError: If it is empty or cannot be a path.
        NotSupportedError: If it is a URL.
        NotADirectoryError: If it exists and is not a directory.
    """
    path: object = directory
    if isinstance(directory, os.PathLike):
        path = os.fspath(directory)
    received = f"checkpoint_dir={directory!r}"
    todo = 'Use a path such as "runs/mnist".'
    if not isinstance(path, str):
        what = "The checkpoint directory is not a path."
        raise TypeError(message(what, received=received, hint=todo))
    if not path.strip() or "\0" in path:
        what = "The checkpoint directory is empty, or contains a null character."
        raise ValueError(message(what, received=received, hint=todo))
    if _URL.match(path):
        what = "This directory must be a local path, not an address in an object store."
        todo = "Use a local path: an address can be checkpoint_dir of fit and Run."
        raise NotSupportedError(what, received=redacted(path), hint=todo)
    absolute = Path(path).expanduser().absolute()
    if os.path.lexists(absolute) and not absolute.is_dir():
        what = "The checkpoint directory is not a directory."
        todo = "Use another path, or move the file that is there."
        if leads_nowhere(absolute):
            what = "The checkpoint directory is a link whose target is missing."
            todo = "Mount the disk that it is on, or delete the link."
        raise NotADirectoryError(message(what, received=received, hint=todo))
    return absolute


def make_directory(directory: Path) -> None:
    """Create a checkpoint directory that survives a power cut.

    Raises:
        CheckpointWriteError: If the file system does not allow it.
    """
    missing = [p for p in (directory, *directory.parents) if not os.path.lexists(p)]
    there = missing[-1].parent if missing else directory
    with refusals.unwritable(
        "The checkpoint directory cannot be created",
        received=directory,
        hint="Choose a checkpoint_dir in a directory that this user may write to.",
    ):
        # A kill may have come right after it was created. Not everybody may read there.
        with contextlib.suppress(PermissionError):
            files.sync(there.parent)
        for path in reversed(missing):
            path.mkdir(exist_ok=True)
            files.sync(path.parent)
