"""The `resilient` command: parses the arguments and runs one command.

    resilient run -- python train.py
    resilient ls [DIR]          resilient verify DIR
    resilient show DIR [STEP]   resilient prune DIR --keep N
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
from collections.abc import Sequence

from resilient.cli import commands, convert
from resilient.cli.commands import DAMAGED, FAILED, IN_USE, NOTHING, USAGE, failed
from resilient.cli.parser import make_parser
from resilient.cli.places import split
from resilient.cli.runs import default_directory
from resilient.errors import (
    CheckpointNotFoundError,
    CorruptCheckpointError,
    DirectoryInUseError,
    ResilientError,
    printable,
)
from resilient.serialization import JSON
from resilient.storage.manifest import has_key
from resilient.storage.stores import local_path, open_readonly

# Exit codes for exceptions; the first match counts.
_CODES: dict[type[Exception], int] = {
    convert.UsageError: USAGE,
    CheckpointNotFoundError: NOTHING,
    CorruptCheckpointError: DAMAGED,
    DirectoryInUseError: IN_USE,
    OSError: FAILED,
    ResilientError: FAILED,
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
    try:
        try:
            return _command(argv)
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:  # `| head` has seen enough
        # At exit Python flushes stdout, and would complain that it cannot.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _PIPE


def _command(argv: Sequence[str] | None) -> int:
    arguments, unknown = make_parser().parse_known_args(argv)
    if unknown:
        arguments.usage_error(f"unrecognized arguments: {' '.join(unknown)}")
    for name in ("supervise", "complete"):  # they take no DIR
        if hasattr(arguments, name):
            return int(getattr(arguments, name)(arguments))
    try:
        directory = arguments.directory
        if arguments.takes_checkpoint:
            directory, arguments.step = split(directory, arguments.step)
        directory = default_directory() if directory is None else directory
        local_path(directory)  # raises if something is wrong with it
        has_key()  # likewise
        arguments.check(arguments)
    except (OSError, ResilientError, ValueError) as error:
        return failed(USAGE, error, arguments.json)
    try:
        with open_readonly(directory) as store:
            if not (arguments.makes_directory or store.directory.is_dir()):
                raise commands.nothing("There is no directory", store)
            code, data = arguments.run(store, arguments)
    except tuple(_CODES) as error:
        code = next(code for kind, code in _CODES.items() if isinstance(error, kind))
        return failed(code, error, arguments.json)
    try:
        _print(data, arguments)
    except BrokenPipeError:
        raise
    except OSError as error:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # nothing left to flush
        return failed(FAILED, error, as_json=False)
    return int(code)


def _print(data: JSON, arguments: argparse.Namespace) -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):  # names may not fit the encoding
        sys.stdout.reconfigure(errors="backslashreplace")
    if arguments.json:
        text = json.dumps(data, indent=1, ensure_ascii=False)
        print(printable(text, lines=True))
    else:
        arguments.report(data, arguments)
    sys.stdout.flush()
