"""The commands that inspect a checkpoint directory, and the one that prunes it.

Each returns its exit code and its findings as JSON; ``text`` words them for people.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from resilient.cli import contents, places
from resilient.cli.runs import RunSearch
from resilient.errors import (
    CheckpointNotFoundError,
    CheckpointReadError,
    CorruptCheckpointError,
    NotSupportedError,
    printable,
)
from resilient.policies import best
from resilient.serialization import JSON
from resilient.serialization.schema import strict
from resilient.storage import layout, quarantine
from resilient.storage.checkpoint import Checkpoint
from resilient.storage.lock import DirectoryLock
from resilient.storage.manifest import Signature, has_key
from resilient.storage.recovery import remove_stale_staging
from resilient.storage.store import Store
from resilient.telemetry.events import read_events

OK, DAMAGED, USAGE, NOTHING, IN_USE, FAILED = range(6)


def failed(code: int, error: Exception, as_json: bool) -> int:
    """Print why a command fails, and return its exit code."""
    if as_json:
        print(json.dumps(error_to_json(error)))
    else:
        print(f"resilient: {printable(str(error), lines=True)}", file=sys.stderr)
    return code


def error_to_json(error: Exception) -> JSON:
    """Why a command fails, as JSON."""
    return {"error": type(error).__name__, "message": str(error)}


def ls(store: Store, arguments: argparse.Namespace) -> tuple[int, JSON]:
    """The checkpoints of a run and the rest of its directory; or several runs."""
    found = store.checkpoints(only_readable=True)
    damaged, unread = _not_usable(store, found)
    entries = quarantine.entries(store.directory)
    if not (found or damaged or entries or any(unread.values())):
        return _runs(store, arguments)
    data = {
        "directory": str(store),
        "checkpoints": [_summary(checkpoint) for checkpoint in found],
        "newest": found[-1].step if found else None,
        "best": _best(found),
        "damaged": [
            {"name": layout.committed_name(step), "problems": problems}
            for step, problems in damaged.items()
        ],
        **unread,
        "quarantine": [
            {"name": path.name, **vars(reason)} for path, reason in entries.items()
        ],
    }
    if damaged or any(unread.values()):
        return (DAMAGED if damaged else FAILED), data
    return (OK if found else NOTHING), data


def _not_usable(
    store: Store, found: Sequence[Checkpoint]
) -> tuple[dict[int, list[str]], dict[str, list[JSON]]]:
    """What is wrong with the other checkpoints."""
    steps = {checkpoint.step for checkpoint in found}
    others = [s for s in store.steps() if s not in steps]
    return _problems(store, others)


def _best(found: Sequence[Checkpoint]) -> JSON | None:
    """The best by validation loss, or else by training loss."""
    for monitor in ("val_loss", "loss"):
        (policy,) = best(1, monitor).bests
        for step in policy.select(found):
            return {"step": step, "monitor": monitor}
    return None


def _runs(store: Store, arguments: argparse.Namespace) -> tuple[int, JSON]:
    """The runs below a directory, by name."""
    search = RunSearch(store.directory)
    unread: dict[str, list[JSON]] = {"newer": [], "unreadable": search.unreadable}
    runs: list[JSON] = []
    for path in search.found():
        name = os.fspath(path.relative_to(store.directory))
        run = Store(path)
        found = run.checkpoints(only_readable=True)
        damaged, of_run = _not_usable(run, found)
        for kind, some in of_run.items():
            unread[kind] += [each | {"name": f"{name}/{each['name']}"} for each in some]
        runs.append(
            {
                "name": name,
                "checkpoints": len(found),
                "newest": _summary(found[-1]) if found else None,
                "nbytes": sum(checkpoint.nbytes for checkpoint in found),
                "damaged": [layout.committed_name(step) for step in damaged],
            }
        )
    if not runs and not any(unread.values()):
        raise _no_runs(store, arguments)
    data = {
        "directory": str(store),
        "runs": runs,
        "complete": search.complete,
        **unread,
    }
    damage = any(run["damaged"] for run in runs)
    return (DAMAGED if damage else FAILED if any(unread.values()) else OK), data


def _no_runs(store: Store, arguments: argparse.Namespace) -> CheckpointNotFoundError:
    if arguments.directory is not None:
        return nothing("There is no checkpoint in or below", store)
    return CheckpointNotFoundError(
        f"There are no checkpoints in {Path.cwd()}, or in a directory `runs` there.",
        hint="Name the checkpoint_dir of a run, or a directory of several runs: "
        "resilient ls DIR",
    )


def show(store: Store, arguments: argparse.Namespace) -> tuple[int, JSON]:
    """What one checkpoint holds."""
    steps = store.steps()
    if not steps:
        raise nothing("There is no checkpoint in", store)
    checkpoint = store.read(steps[-1] if arguments.step is None else arguments.step)
    run, whole = contents.look(checkpoint)
    problems = checkpoint.file_problems(compare=False)
    resumes = read_events(store.directory, having=['repeated"'])
    data = _summary(checkpoint) | {
        "repeated": [each["repeated"] for each in resumes if "repeated" in each],
        "path": f"{store}/{checkpoint.path.name}",
        "problems": problems,
        "environment": dict(checkpoint.environment),
        "files": {name: vars(record) for name, record in checkpoint.files.items()},
        **run,
    }
    return (OK if whole and not problems else DAMAGED), data


def verify(store: Store, arguments: argparse.Namespace) -> tuple[int, JSON]:
    """Reads every byte, and says what is wrong with each checkpoint."""
    results: list[JSON] = []
    readable = {each.step: each for each in store.checkpoints(only_readable=True)}
    steps = store.steps()
    if arguments.step is not None:
        step = arguments.step
        steps = [step] if step in steps else [store.read(step).step]
    found, unread = _problems(store, steps)
    for step, problems in found.items():
        name = layout.committed_name(step)
        # A run that is still training may prune one while we read it: that is not
        # damage.
        if not problems or os.path.lexists(store.directory / name):
            results.append(
                {"name": name, "step": step, "problems": problems}
                | _remarks(readable.get(step))
            )
    if not results and not any(unread.values()):
        raise nothing("There is no checkpoint in", store)
    data = {
        "directory": str(store),
        "checkpoints": results,
        **unread,
    }
    trusted = not has_key() or all(r["signature"] == Signature.OURS for r in results)
    damaged = any(result["problems"] for result in results)
    good = trusted and not any(unread.values())
    return (DAMAGED if damaged else OK if good else FAILED), data


def _remarks(checkpoint: Checkpoint | None) -> JSON:
    """Remarks that are not damage: who may have written it, and added files."""
    if checkpoint is None:
        return {"signature": None, "unlisted": []}
    signature, unlisted = str(checkpoint.signature), checkpoint.unlisted()
    return {"signature": signature, "unlisted": unlisted}


def _problems(
    store: Store, steps: Sequence[int]
) -> tuple[dict[int, list[str]], dict[str, list[JSON]]]:
    """What is wrong with each checkpoint; and those that cannot be judged."""
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
    """Delete all but some checkpoints."""
    keep = arguments.policy
    with nullcontext() if arguments.dry_run else DirectoryLock(store.directory):
        every = store.checkpoints()
        found = [each for each in every if each.is_trusted()]
        if not found:
            for each in every:
                each.require_trusted()
            raise nothing("There is no checkpoint in", store)
        if problems := store.problems(found[-1].step):
            raise CorruptCheckpointError(
                "The newest checkpoint is damaged, so nothing is deleted.",
                received=f"{store}/{found[-1].path.name}: {'; '.join(problems)}",
                hint="Resume the run, which moves that checkpoint to quarantine; "
                "then prune.",
            )
        kept = keep.select(found)
        doomed = [checkpoint for checkpoint in found if checkpoint.step not in kept]
        if not arguments.dry_run:
            remove_stale_staging(store.directory)
            store.prune(keep)
    data = {
        "directory": str(store),
        "dry_run": arguments.dry_run,
        "removed": [checkpoint.step for checkpoint in doomed],
        "kept": sorted(kept),
        "nbytes": sum(checkpoint.nbytes for checkpoint in doomed),
    }
    return OK, data


def _summary(checkpoint: Checkpoint) -> JSON:
    return {
        "name": checkpoint.path.name,
        **checkpoint.progress._asdict(),
        "finished": checkpoint.finished,
        "created": checkpoint.created,
        "nbytes": checkpoint.nbytes,
        "metrics": {name: strict(x) for name, x in checkpoint.metrics.items()},
    }


def nothing(what: str, store: Store) -> CheckpointNotFoundError:
    """The error for a directory that is missing or has nothing to show."""
    todo, directory = (
        "Name the checkpoint_dir of a run that has saved.",
        store.directory,
    )
    if places.names_checkpoint(directory):
        todo = f"Name the directory of the run: {directory.parent}"
    elif next(RunSearch(directory).found(), None) is not None:
        todo = f"Name one of the runs in it: `resilient ls {directory}` lists them."
    return CheckpointNotFoundError(f"{what} {store}.", hint=todo)
