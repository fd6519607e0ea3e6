"""``resilient run``: its arguments, and its way through the supervisor."""

import argparse
import dataclasses
import math
import sys
from functools import partial
from typing import Any

from resilient.errors import ResilientError

_EXIT_CODES = """\
exit codes:
  0    the command ended with 0
  2    wrong usage
  126  the command cannot be executed; 127: it was not found
  130  it was interrupted (SIGINT)
  143  it was preempted and must not run on here, or it was told to stop (SIGTERM)
  else that of the command's last attempt (128 + number of the signal that killed it)
"""


def add_to(commands: Any) -> None:
    """Add the command to those of ``resilient``.

    Args:
        commands: What ``add_subparsers`` gave.
    """
    text = "Run a training script, and run it again when it dies."
    parser = commands.add_parser(
        "run",
        help=text,
        description=text,
        usage="resilient run [options] -- COMMAND [ARGUMENT ...]",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _gang_options(parser)
    _restart_options(parser)
    _hang_options(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.set_defaults(supervise=supervise, usage_error=parser.error)


def _gang_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    text = "the checkpoint_dir (found out if left out)"
    add("--dir", dest="directory", metavar="DIR", help=text)
    add("--nproc", metavar="N", type=integer, help="start N processes (1)")
    text = "seconds for the others to save when one failed (10)"
    add("--gang-grace", metavar="SECONDS", type=_seconds, help=text)


def _restart_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    text = "give up after N restarts (no limit)"
    add("--max-restarts", metavar="N", type=partial(integer, least=0), help=text)
    text = "give up when the same failure came N times without progress (3)"
    add("--same-failure", metavar="N", type=integer, help=text)
    text = "give up after N restarts without a newer checkpoint (10)"
    add("--no-progress", metavar="N", type=integer, help=text)
    text = "longest wait before the first restart; it doubles (1)"
    add("--backoff", metavar="SECONDS", type=_seconds, help=text)
    text = "longest wait before any restart (300)"
    add("--max-backoff", metavar="SECONDS", type=_seconds, help=text)


def _hang_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    text = "longest silence while training (learned); 0: never a hang"
    add("--hang-timeout", metavar="SECONDS", type=_seconds, help=text)
    text = "longest start, and longest save (1800, once there was a sign of life)"
    add("--startup-timeout", metavar="SECONDS", type=_seconds, help=text)


def supervise(arguments: argparse.Namespace) -> int:
    """Run the command that was asked for; the exit code."""
    from resilient.supervise.output import Output
    from resilient.supervise.signal_queue import SignalQueue
    from resilient.supervise.supervisor import Supervisor

    command = arguments.command[arguments.command[:1] == ["--"] :]
    if not command:
        arguments.usage_error(
            "there is no command to run; give one, such as: resilient run -- python "
            "train.py"
        )
    try:
        options = _options(arguments, command)
    except (OSError, ValueError, ResilientError) as error:
        sys.stderr.write(f"resilient: {error}\n")
        return 2
    with SignalQueue() as inbox, Output() as output:
        return Supervisor(options, output, inbox).run()


def _options(arguments: argparse.Namespace, command: list[str]) -> Any:
    from resilient.storage.layout import local_directory
    from resilient.supervise.options import Options

    names = {field.name for field in dataclasses.fields(Options)} - {"command"}
    given = {
        name: value
        for name, value in vars(arguments).items()
        if name in names and value is not None
    }
    if "directory" in given:
        given["directory"] = local_directory(given["directory"])
    return Options(command, **given)


def integer(text: str, least: int = 1) -> int:
    """An option that is an integer of ``least`` or more."""
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an integer of {least} or more"
        )
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds >= 0):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of seconds, 0 or more"
        )
    return seconds
