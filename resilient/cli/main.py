"""Looking at a checkpoint directory, and tidying it, from the command line.

    resilient ls DIR            resilient verify DIR
    resilient show DIR [STEP]   resilient prune DIR --keep N
    resilient report DIR        resilient run -- python train.py
    resilient export DIR --to model.keras
    resilient import SOURCE --to DIR --model module:function

Only ``prune`` and ``import`` change anything, and not while a run uses the directory.
Only ``export`` and ``import`` load Keras: the others answer at once, on any machine.
"""

import argparse
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from resilient.cli import convert
from resilient.cli import run as run_command
from resilient.cli import text as texts
from resilient.errors import (
    CheckpointNotFoundError,
    CorruptCheckpointError,
    DirectoryInUseError,
    ResilientError,
    message,
    printable,
)
from resilient.policies import KeepPolicy, best, latest
from resilient.serialization import JSON, strict
from resilient.storage import layout, quarantine
from resilient.storage.checkpoint import Checkpoint
from resilient.storage.lock import DirectoryLock
from resilient.storage.signature import Signature, has_key
from resilient.storage.store import Store
from resilient.telemetry.goodput import goodput

OK, DAMAGED, USAGE, NOTHING, IN_USE, FAILED = range(6)

# Of what a command raises, the first that fits.
_CODES: dict[type[Exception], int] = {
    convert.UsageError: USAGE,
    CheckpointNotFoundError: NOTHING,
    CorruptCheckpointError: DAMAGED,
    DirectoryInUseError: IN_USE,
    OSError: FAILED,
    ResilientError: FAILED,
}

_EXIT_CODES = """\
exit codes:
  0  done, all is well
  1  damage: something fails verification, or has no readable manifest
  2  wrong usage
  3  nothing there: no such directory, no checkpoint, or none of that step
  4  the directory is in use by a living run
  5  the file system does not let us read or write, another version wrote it, it is
     not signed with RESILIENT_KEY, or export or import cannot do what was asked
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: The arguments; those of this process if None.

    Returns:
        The exit code, as ``resilient --help`` lists them.
    """
    parser = _parser()
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        arguments.usage_error(f"unrecognized arguments: {' '.join(unknown)}")
    if hasattr(arguments, "supervise"):  # `run`, which has no DIR to look at
        return int(arguments.supervise(arguments))
    try:
        store = Store(arguments.directory)
        arguments.check(arguments)
    except (OSError, ResilientError, ValueError) as error:
        return _failed(USAGE, error, arguments.json)
    try:
        if not (arguments.makes_directory or store.directory.is_dir()):
            raise _nothing(f"There is no directory {store.directory}.", arguments)
        code, data = arguments.run(store, arguments)
    except tuple(_CODES) as error:
        code = next(code for kind, code in _CODES.items() if isinstance(error, kind))
        return _failed(code, error, arguments.json)
    try:
        _print(data, arguments)
    except OSError as error:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # nothing left to flush
        return _failed(FAILED, error, as_json=False)
    return int(code)


def _print(data: JSON, arguments: argparse.Namespace) -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):  # names may not fit the encoding
        sys.stdout.reconfigure(errors="backslashreplace")
    if arguments.json:
        text = json.dumps(data, indent=1, ensure_ascii=False)
        print(printable(text, lines=True))
    else:
        arguments.report(data)
    sys.stdout.flush()


def _ls(store: Store, arguments: argparse.Namespace) -> tuple[int, JSON]:
    found = store.checkpoints()
    steps = {checkpoint.step for checkpoint in found}
    damaged = [
        {"name": layout.committed_name(step), "problems": store.problems(step)}
        for step in layout.committed_steps(store.directory)
        if step not in steps
    ]
    entries = quarantine.entries(store.directory)
    if not found and not damaged and not entries:
        raise _nothing(f"There is no checkpoint in {store.directory}.", arguments)
    data = {
        "directory": os.fspath(store.directory),
        "checkpoints": [_summary(checkpoint) for checkpoint in found],
        "damaged": damaged,
        "quarantine": [
            {"name": entry.path.name, **vars(entry.reason)} for entry in entries
        ],
    }
    return (DAMAGED if damaged else OK if found else NOTHING), data


def _show(store: Store, arguments: argparse.Namespace) -> tuple[int, JSON]:
    steps = layout.committed_steps(store.directory)
    if not steps:
        raise _nothing(f"There is no checkpoint in {store.directory}.", arguments)
    checkpoint = store.read(steps[-1] if arguments.step is None else arguments.step)
    data = _summary(checkpoint) | {
        "path": os.fspath(checkpoint.path),
        "environment": dict(checkpoint.environment),
        "files": {name: vars(record) for name, record in checkpoint.files.items()},
    }
    return OK, data


def _verify(store: Store, arguments: argparse.Namespace) -> tuple[int, JSON]:
    results, readable = [], {found.step: found for found in store.checkpoints()}
    for step in layout.committed_steps(store.directory):
        problems = store.problems(step)
        name = layout.committed_name(step)
        # A living run may prune one while it is read: then it is no damage.
        if not problems or os.path.lexists(store.directory / name):
            found = readable.get(step)
            unlisted = [] if found is None else found.unlisted()
            signature = None if found is None else str(found.signature)
            more = {"signature": signature, "unlisted": unlisted}
            results.append({"name": name, "step": step, "problems": problems} | more)
    if not results:
        raise _nothing(f"There is no checkpoint in {store.directory}.", arguments)
    data = {"directory": os.fspath(store.directory), "checkpoints": results}
    trusted = not has_key() or all(r["signature"] == Signature.OURS for r in results)
    damaged = any(r["problems"] for r in results)
    return (DAMAGED if damaged else OK if trusted else FAILED), data


def _prune(store: Store, arguments: argparse.Namespace) -> tuple[int, JSON]:
    keep = arguments.policy
    with nullcontext() if arguments.dry_run else DirectoryLock(store.directory):
        found = store.checkpoints()
        if not found:
            raise _nothing(f"There is no checkpoint in {store.directory}.", arguments)
        if problems := found[-1].verify():
            raise CorruptCheckpointError(
                "The newest checkpoint is damaged, so nothing is deleted.",
                received=f"{found[-1].path}: {'; '.join(problems)}",
                hint="Resume the run, which moves it to quarantine; then prune.",
            )
        kept = keep.select(found)
        doomed = [checkpoint for checkpoint in found if checkpoint.step not in kept]
        if not arguments.dry_run:
            store.remove_stale_staging()
            store.prune(keep)
    data = {
        "directory": os.fspath(store.directory),
        "dry_run": arguments.dry_run,
        "removed": [checkpoint.step for checkpoint in doomed],
        "kept": sorted(kept),
        "nbytes": sum(checkpoint.nbytes for checkpoint in doomed),
    }
    return OK, data


def _report(store: Store, arguments: argparse.Namespace) -> tuple[int, JSON]:
    found = goodput(store.directory)
    if not found.attempts:
        raise _nothing(f"There are no events in {store.directory}.", arguments)
    return OK, {"directory": os.fspath(store.directory), **found.to_json()}


def _check_prune(arguments: argparse.Namespace) -> None:
    arguments.policy = _policy(arguments)


def _policy(arguments: argparse.Namespace) -> KeepPolicy:
    newest = latest(arguments.keep)
    if arguments.best is None and arguments.monitor is None:
        return newest
    if arguments.best is None or arguments.monitor is None:
        received = f"--best {arguments.best}, --monitor {arguments.monitor}"
        todo = "Give both, such as --best 1 --monitor val_loss."
        raise ValueError(
            message("--best needs --monitor.", received=received, hint=todo)
        )
    return newest | best(arguments.best, arguments.monitor, arguments.mode)


def _summary(checkpoint: Checkpoint) -> JSON:
    return {
        "name": checkpoint.path.name,
        **checkpoint.progress.to_json(),
        "finished": checkpoint.finished,
        "created": checkpoint.created,
        "nbytes": checkpoint.nbytes,
        "metrics": {name: strict(x) for name, x in checkpoint.metrics.items()},
    }


def _nothing(what: str, arguments: argparse.Namespace) -> CheckpointNotFoundError:
    todo = "Name the checkpoint_dir of a run that has saved."
    return CheckpointNotFoundError(what, received=f"{arguments.directory}", hint=todo)


def _failed(code: int, error: Exception, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"error": type(error).__name__, "message": str(error)}))
    else:
        print(f"resilient: {printable(str(error), lines=True)}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="resilient",
        description="Look at the checkpoints of a run, tidy them, and convert them.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(
        name: str,
        run: Callable[..., Any],
        report: Callable[[JSON], None],
        text: str,
        directory: bool = True,
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(
            name,
            help=text,
            description=text,
            epilog=_EXIT_CODES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if directory:
            command.add_argument("directory", metavar="DIR", help="the checkpoint_dir")
        command.add_argument("--json", action="store_true", help="print JSON instead")
        command.set_defaults(
            run=run,
            report=report,
            check=lambda _: None,
            makes_directory=False,
            usage_error=command.error,
        )
        return command

    add("ls", _ls, texts.ls, "List the checkpoints of a run.")
    show = add("show", _show, texts.show, "Show what one checkpoint holds.")
    show.add_argument(
        "step", metavar="STEP", type=int, nargs="?", help="the newest if left out"
    )
    add("report", _report, texts.report, "Show where the time of a run went.")
    add("verify", _verify, texts.verify, "Read every byte and compare checksums.")
    prune = add("prune", _prune, texts.prune, "Delete all but some checkpoints.")
    prune.add_argument(
        "--keep",
        metavar="N",
        type=run_command.integer,
        required=True,
        help="the N newest",
    )
    prune.add_argument(
        "--best", metavar="N", type=run_command.integer, help="and the N best"
    )
    prune.add_argument("--monitor", metavar="METRIC", help="by this metric")
    prune.add_argument("--mode", choices=("auto", "min", "max"), default="auto")
    prune.add_argument("--dry-run", action="store_true", help="only say what would go")
    prune.set_defaults(check=_check_prune)
    convert.add_export(add)
    convert.add_import(add)
    run_command.add_to(commands)
    return parser
