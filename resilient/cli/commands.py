"""The commands that look at a checkpoint directory, and the one that tidies it.

Each returns the exit code and what it found, as JSON; ``text`` words that for people.
"""

import argparse
import os
from collections.abc import Sequence
from contextlib import nullcontext

from resilient.errors import (
    CheckpointNotFoundError,
    CheckpointReadError,
    CorruptCheckpointError,
    NotSupportedError,
)
from resilient.serialization import JSON, strict
from resilient.storage import layout, quarantine
from resilient.storage.checkpoint import Checkpoint
from resilient.storage.lock import DirectoryLock
from resilient.storage.recovery import remove_stale_staging
from resilient.storage.signature import Signature, has_key
from resilient.storage.store import Store
from resilient.telemetry.events import read_events
from resilient.telemetry.goodput import goodput

OK, DAMAGED, USAGE, NOTHING, IN_USE, FAILED = range(6)


def ls(store: Store, arguments: argparse.Namespace) -> tuple[int, JSON]:
    """The checkpoints of a run, and what else is in its directory."""
    found = store.checkpoints(to_look=True)
    steps = {checkpoint.step for checkpoint in found}
    others = [s for s in layout.committed_steps(store.directory) if s not in steps]
    damaged, unread = _problems(store, others)
    entries = quarantine.entries(store.directory)
    if not found and not others and not entries:
        raise nothing(f"There is no checkpoint in {store.directory}.", arguments)
    data = {
        "directory": os.fspath(store.directory),
        "checkpoints": [_summary(checkpoint) for checkpoint in found],
        "damaged": [
            {"name": layout.committed_name(step), "problems": problems}
            for step, problems in damaged.items()
        ],
        **unread,
        "quarantine": [
            {"name": entry.path.name, **vars(entry.reason)} for entry in entries
        ],
    }
    if damaged or any(unread.values()):
        return (DAMAGED if damaged else FAILED), data
    return (OK if found else NOTHING), data


def show(store: Store, arguments: argparse.Namespace) -> tuple[int, JSON]:
    """What one checkpoint holds."""
    steps = layout.committed_steps(store.directory)
    if not steps:
        raise nothing(f"There is no checkpoint in {store.directory}.", arguments)
    checkpoint = store.read(steps[-1] if arguments.step is None else arguments.step)
    data = _summary(checkpoint) | {
        "path": os.fspath(checkpoint.path),
        "environment": dict(checkpoint.environment),
        "files": {name: vars(record) for name, record in checkpoint.files.items()},
    }
    return OK, data


def verify(store: Store, arguments: argparse.Namespace) -> tuple[int, JSON]:
    """What is wrong with each checkpoint; every byte is read."""
    results: list[JSON] = []
    readable = {each.step: each for each in store.checkpoints(to_look=True)}
    found, unread = _problems(store, layout.committed_steps(store.directory))
    for step, problems in found.items():
        name = layout.committed_name(step)
        # A living run may prune one while it is read: then it is no damage.
        if not problems or os.path.lexists(store.directory / name):
            results.append(
                {"name": name, "step": step, "problems": problems}
                | _remarks(readable.get(step))
            )
    if not results and not any(unread.values()):
        raise nothing(f"There is no checkpoint in {store.directory}.", arguments)
    data = {
        "directory": os.fspath(store.directory),
        "checkpoints": results,
        **unread,
    }
    trusted = not has_key() or all(r["signature"] == Signature.OURS for r in results)
    damaged = any(result["problems"] for result in results)
    good = trusted and not any(unread.values())
    return (DAMAGED if damaged else OK if good else FAILED), data


def _remarks(checkpoint: Checkpoint | None) -> JSON:
    """What is no damage: who can have written it, and what was put beside its files."""
    if checkpoint is None:
        return {"signature": None, "unlisted": []}
    signature, unlisted = str(checkpoint.signature), checkpoint.unlisted()
    return {"signature": signature, "unlisted": unlisted}


def _problems(
    store: Store, steps: Sequence[int]
) -> tuple[dict[int, list[str]], dict[str, list[JSON]]]:
    """What is wrong with each checkpoint; and those of which that cannot be said."""
    found: dict[int, list[str]] = {}
    unread: dict[str, list[JSON]] = {"newer": [], "unreadable": []}
    for step in steps:
        try:
            found[step] = store.problems(step)
        except (NotSupportedError, CheckpointReadError) as error:
            kind = "newer" if isinstance(error, NotSupportedError) else "unreadable"
            name = layout.committed_name(step)
            unread[kind].append({"name": name, "step": step, "message": str(error)})
    return found, unread


def prune(store: Store, arguments: argparse.Namespace) -> tuple[int, JSON]:
    """Delete all checkpoints but some."""
    keep = arguments.policy
    with nullcontext() if arguments.dry_run else DirectoryLock(store.directory):
        every = store.checkpoints()
        found = [each for each in every if each.is_trusted()]
        if not found:
            for each in every:
                each.require_trusted()
            what = f"There is no checkpoint in {store.directory}."
            raise nothing(what, arguments)
        if problems := found[-1].verify():
            raise CorruptCheckpointError(
                "The newest checkpoint is damaged, so nothing is deleted.",
                received=f"{found[-1].path}: {'; '.join(problems)}",
                hint="Resume the run, which moves it to quarantine; then prune.",
            )
        kept = keep.select(found)
        doomed = [checkpoint for checkpoint in found if checkpoint.step not in kept]
        if not arguments.dry_run:
            remove_stale_staging(store.directory)
            store.prune(keep)
    data = {
        "directory": os.fspath(store.directory),
        "dry_run": arguments.dry_run,
        "removed": [checkpoint.step for checkpoint in doomed],
        "kept": sorted(kept),
        "nbytes": sum(checkpoint.nbytes for checkpoint in doomed),
    }
    return OK, data


def report(store: Store, arguments: argparse.Namespace) -> tuple[int, JSON]:
    """Where the time of a run went."""
    found = goodput(store.directory)
    if not found.attempts:
        next(read_events(store.directory, all_of_them=True), None)  # or why not
        raise nothing(
            f"No events of a run can be read in {store.directory}.", arguments
        )
    return OK, {"directory": os.fspath(store.directory), **found.to_json()}


def _summary(checkpoint: Checkpoint) -> JSON:
    return {
        "name": checkpoint.path.name,
        **checkpoint.progress.to_json(),
        "finished": checkpoint.finished,
        "created": checkpoint.created,
        "nbytes": checkpoint.nbytes,
        "metrics": {name: strict(x) for name, x in checkpoint.metrics.items()},
    }


def nothing(what: str, arguments: argparse.Namespace) -> CheckpointNotFoundError:
    """The error that there is nothing to look at."""
    todo = "Name the checkpoint_dir of a run that has saved."
    return CheckpointNotFoundError(what, received=f"{arguments.directory}", hint=todo)
