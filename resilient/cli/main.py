"""The `resilient` command: parses the arguments and runs one command.

    resilient run -- python train.py
    resilient prove -- python train.py
    resilient ls DIR            resilient verify DIR
    resilient show DIR          resilient prune DIR --keep N
    resilient report DIR        resilient diff A B
    resilient watch DIR
    resilient export DIR --to model.keras
    resilient import SOURCE --to DIR --model module:function

Only ``prune`` and ``import`` change anything, and never while a run uses the directory.
Only ``export`` and ``import`` load Keras: the others answer at once, on any machine.
"""

import argparse
import contextlib
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from resilient._version import __version__
from resilient.cli import commands, convert, diff, prove, report, run
from resilient.errors import (
    CheckpointNotFoundError,
    CorruptCheckpointError,
    DirectoryInUseError,
    ResilientError,
    printable,
)

_DESCRIPTION = "Run training and restart it; inspect, convert and clean up checkpoints."
_EXIT_CODES = (
    "exit codes of all but run: 0 success; 1 damage, or different (diff, prove); "
    "2 wrong usage; 3 not found; 4 the directory is in use by a running process; 5 not "
    "possible, the message says why; 130 Ctrl-C; 141 nobody reads the output. "
    "`resilient COMMAND --help` lists the options of a command."
)

# Exit codes for exceptions; the first match counts.
_CODES: dict[type[Exception], int] = {
    CheckpointNotFoundError: commands.NOTHING,
    CorruptCheckpointError: commands.DAMAGED,
    DirectoryInUseError: commands.IN_USE,
    OSError: commands.FAILED,
    ResilientError: commands.FAILED,
    ValueError: commands.USAGE,
}

_INTERRUPTED = 130  # as of a program that SIGINT ended
_PIPE = 141  # as for a program that SIGPIPE ended


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: The arguments; None for those of this process.

    Returns:
        The exit code; ``resilient --help`` lists them.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as some start their daemons
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    try:
        try:
            return _command(argv)
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return _INTERRUPTED
    except OSError as error:  # of the output
        # At exit Python flushes it, and would complain that it cannot.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # `| head` has seen enough
            return _PIPE
        return _failed(error, as_json=False)


def _command(argv: Sequence[str] | None) -> int:
    arguments = make_parser().parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):  # names may not fit the encoding
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code, data, show = arguments.run(arguments)
    except BrokenPipeError:
        raise
    except tuple(_CODES) as error:
        return _failed(error, arguments.json)
    if arguments.json:
        found = json.dumps(data, indent=1, ensure_ascii=False)
        print(printable(found, lines=True))
    else:
        show(data)
    return int(code)


def _failed(error: Exception, as_json: bool) -> int:
    """Print why a command fails, and return its exit code."""
    if as_json:
        print(json.dumps({"error": type(error).__name__, "message": str(error)}))
    else:
        print(f"resilient: {printable(str(error), lines=True)}", file=sys.stderr)
    return next(code for kind, code in _CODES.items() if isinstance(error, kind))


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="resilient", description=_DESCRIPTION, epilog=_EXIT_CODES
    )
    version = f"keras-resilient {__version__}"
    parser.add_argument("--version", action="version", version=version)
    subparsers = parser.add_subparsers(
        title="commands", required=True, metavar="COMMAND"
    )
    run.add_to(subparsers)
    for module in (prove, commands, report, diff, convert):
        module.add_to(partial(_add, subparsers))
    return parser


def _add(
    subparsers: Any, name: str, run: Callable[..., commands.Result], about: str
) -> argparse.ArgumentParser:
    """Add a command."""
    command: argparse.ArgumentParser = subparsers.add_parser(
        name, help=about, description=about, allow_abbrev=False
    )
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=run)
    return command
