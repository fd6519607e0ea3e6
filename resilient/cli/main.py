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
from typing import Any

from resilient.cli import commands, convert
from resilient.cli import run as run_command
from resilient.cli import text as texts
from resilient.cli.commands import DAMAGED, FAILED, IN_USE, NOTHING, USAGE
from resilient.errors import (
    CheckpointNotFoundError,
    CorruptCheckpointError,
    DirectoryInUseError,
    ResilientError,
    message,
    printable,
)
from resilient.policies import KeepPolicy, best, latest
from resilient.serialization import JSON
from resilient.storage.store import Store

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
            raise commands.nothing(
                f"There is no directory {store.directory}.", arguments
            )
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
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(
        name: str,
        run: Callable[..., Any],
        report: Callable[[JSON], None],
        text: str,
        directory: bool = True,
    ) -> argparse.ArgumentParser:
        command = subparsers.add_parser(
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

    add("ls", commands.ls, texts.ls, "List the checkpoints of a run.")
    show = add("show", commands.show, texts.show, "Show what one checkpoint holds.")
    show.add_argument(
        "step", metavar="STEP", type=int, nargs="?", help="the newest if left out"
    )
    add("report", commands.report, texts.report, "Show where the time of a run went.")
    add(
        "verify",
        commands.verify,
        texts.verify,
        "Read every byte and compare checksums.",
    )
    prune = add(
        "prune", commands.prune, texts.prune, "Delete all but some checkpoints."
    )
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
    run_command.add_to(subparsers)
    return parser
