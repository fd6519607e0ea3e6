"""The commands that inspect a checkpoint directory, and the one that prunes it.

Each returns its exit code, its findings as JSON, and what words them for people.
"""

import argparse
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext

from resilient.cli import text
from resilient.cli.arguments import CHECKPOINT, RUN, Add, nothing, number, opened
from resilient.cli.style import say, table
from resilient.errors import (
    CheckpointReadError,
    CorruptCheckpointError,
    NotSupportedError,
)
from resilient.policies import best, latest
from resilient.saving import choose
from resilient.saving.record import malformed
from resilient.serialization import JSON
from resilient.serialization.schema import parse, strict
from resilient.storage import layout, quarantine, refusals
from resilient.storage.checkpoint import Checkpoint, find_problem
from resilient.storage.lock import DirectoryLock
from resilient.storage.manifest import Signature, has_key
from resilient.storage.recovery import remove_stale_staging
from resilient.storage.store import Store
from resilient.telemetry.events import read_events

OK, DAMAGED, USAGE, NOTHING, IN_USE, FAILED = range(6)

Result = tuple[int, JSON, Callable[[JSON], None]]

_RUN = "run.json"


def add_to(add: Add) -> None:
    """Add the commands to the others."""
    about = "List the checkpoints of a run."
    add("ls", _ls, about).add_argument("location", **RUN)
    about = "Show what one checkpoint holds."
    add("show", _show, about).add_argument("location", **CHECKPOINT)
    about = "Read every byte of the checkpoints and compare checksums."
    add("verify", _verify, about).add_argument("location", **CHECKPOINT)
    prune = add("prune", _prune, "Delete all checkpoints except the newest.")
    prune.add_argument("location", **RUN)
    more = prune.add_argument
    more("--keep", metavar="N", type=number, required=True, help="keep the N newest")
    more("--best", metavar="METRIC", help="also keep the best one by METRIC")
    about = "whether the lowest or highest is best (default: by the metric's name)"
    more("--mode", choices=("auto", "min", "max"), default="auto", help=about)
    more("--dry-run", action="store_true", help="only show what would be deleted")


def _ls(arguments: argparse.Namespace) -> Result:
    """The checkpoints of a run, and what of its directory is unusable."""
    with opened(arguments.location) as store:
        found = store.checkpoints(only_readable=True)
        good = {checkpoint.step for checkpoint in found}
        bad = list(_judged(store, [s for s in store.steps() if s not in good]))
        moved = quarantine.entries(store.directory)
    data = {
        "directory": str(store),
        "checkpoints": [_summary(checkpoint) for checkpoint in found],
        "unusable": bad,
        "quarantine": [{"name": x.name, **vars(why)} for x, why in moved.items()],
    }
    return _worst(bad) or (OK if found else NOTHING), data, text.ls


def _show(arguments: argparse.Namespace) -> Result:
    """What one checkpoint holds."""
    with opened(arguments.location) as store:
        checkpoint = choose.of_step(store, arguments.location.step)
        found = (
            find_problem(checkpoint.path, name, record, compare=name == _RUN)
            for name, record in checkpoint.files.items()
        )
        if problems := [problem for problem in found if problem is not None]:
            raise refusals.damaged(checkpoint.path, "; ".join(problems))
        with malformed(_RUN):
            run = parse(checkpoint.content(_RUN))
            facts, variables = list(text.facts(run)), text.variables(run)
        resumes = read_events(store.directory, having=['repeated"'])
        repeated = [each["repeated"] for each in resumes if "repeated" in each]
    data = _summary(checkpoint) | {
        "path": f"{store}/{checkpoint.path.name}",
        "repeated": repeated,
        "environment": dict(checkpoint.environment),
        "files": {name: vars(record) for name, record in checkpoint.files.items()},
        "run": run,
    }

    def words(data: JSON) -> None:
        text.show(data)
        for fact in facts:
            say(fact)
        say(table(("variable", "shape", "dtype"), variables))

    return OK, data, words


def _verify(arguments: argparse.Namespace) -> Result:
    """Reads every byte, and says what is wrong with each checkpoint."""
    with opened(arguments.location) as store:
        readable = {each.step: each for each in store.checkpoints(only_readable=True)}
        steps, step = store.steps(), arguments.location.step
        if step is not None:
            steps = [step] if step in steps else [store.read(step).step]
        results = list(_judged(store, steps))
        for each in results:
            checkpoint = readable.get(each["step"])
            each["signature"] = checkpoint and str(checkpoint.signature)
            each["unlisted"] = checkpoint.unlisted() if checkpoint else []
    trusted = not has_key() or all(r["signature"] == Signature.OURS for r in results)
    code = _worst(results) or (OK if trusted else FAILED)
    return code, {"directory": str(store), "checkpoints": results}, text.verify


def _judged(store: Store, steps: Sequence[int]) -> Iterator[JSON]:
    """What is wrong with each checkpoint, if anything."""
    for step in steps:
        name = layout.committed_name(step)
        try:
            problems = store.problems(step)
            verdict = "damaged" if problems else "good"
        except (NotSupportedError, CheckpointReadError) as error:
            problems, verdict = [" ".join(str(error).split())], "unreadable"
        # A run that is still training may prune one while we read it: that is not
        # damage.
        if not problems or os.path.lexists(store.directory / name):
            yield {"name": name, "step": step, "verdict": verdict, "problems": problems}


def _worst(judged: Iterable[JSON]) -> int:
    """The exit code of the worst verdict."""
    verdicts = {each["verdict"] for each in judged}
    return DAMAGED if "damaged" in verdicts else FAILED * ("unreadable" in verdicts)


def _prune(arguments: argparse.Namespace) -> Result:
    """Delete all but some checkpoints."""
    keep, metric = latest(arguments.keep), arguments.best
    if metric is not None:
        keep |= best(1, metric, arguments.mode)
    with (
        opened(arguments.location) as store,
        nullcontext() if arguments.dry_run else DirectoryLock(store.directory),
    ):
        every = store.checkpoints()
        found = [each for each in every if each.is_trusted()]
        for each in [] if found else every:
            each.require_trusted()
        _require_intact(store, found)
        if metric is not None:
            _require_metric(metric, found)
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
    return OK, data, text.prune


def _require_intact(store: Store, found: Sequence[Checkpoint]) -> None:
    """Raise unless the newest is good: a resume would need the older ones."""
    if not found:
        raise nothing("There is no checkpoint in", store)
    if problems := store.problems(found[-1].step):
        raise CorruptCheckpointError(
            "The newest checkpoint is damaged, so nothing is deleted.",
            received=f"{store}/{found[-1].path.name}: {'; '.join(problems)}",
            hint="Resume the run, which moves that checkpoint to quarantine; then "
            "prune.",
        )


def _require_metric(metric: str, found: Sequence[Checkpoint]) -> None:
    """Raise unless a checkpoint has the metric: otherwise none would be the best."""
    names = sorted({name for checkpoint in found for name in checkpoint.metrics})
    if metric not in names:
        raise NotSupportedError(
            "No checkpoint has the metric that decides which is best, so nothing is "
            "deleted.",
            received=metric,
            hint=f"They have: {', '.join(names) or 'no metrics'}.",
        )


def _summary(checkpoint: Checkpoint) -> JSON:
    return {
        "name": checkpoint.path.name,
        **checkpoint.progress._asdict(),
        "finished": checkpoint.finished,
        "created": checkpoint.created,
        "nbytes": checkpoint.nbytes,
        "metrics": {name: strict(x) for name, x in checkpoint.metrics.items()},
    }
