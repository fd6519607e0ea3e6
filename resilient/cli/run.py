"""``resilient run``: its arguments, and the call of the supervisor."""

import argparse
import inspect
import math
import sys
from dataclasses import fields
from functools import partial
from typing import Any

from resilient.errors import ResilientError
from resilient.training.options import FitOptions
from resilient.training.shown import described

_EXIT_CODES = """\
exit codes:
  0    the command ended with 0
  2    wrong usage
  126  the command cannot be executed; 127: it was not found
  130  it was interrupted (SIGINT)
  143  it was preempted and must not continue here, or was told to stop (SIGTERM)
  else the status of the last attempt (128 + number of the signal that killed it)
"""


def add_to(commands: Any) -> None:
    """Add the command to those of ``resilient``.

    Args:
        commands: What ``add_subparsers`` gave.
    """
    text = "Run a training script, and restart it when it dies."
    parser = add_for_script(commands, "run", text, _EXIT_CODES)
    _save_options(parser)
    _gang_options(parser)
    _restart_options(parser)
    _hang_options(parser)
    parser.set_defaults(supervise=supervise)


def add_for_script(
    commands: Any, name: str, text: str, exit_codes: str
) -> argparse.ArgumentParser:
    """Add a command that starts the user's script.

    Args:
        commands: What ``add_subparsers`` returned.
        name: Of the command.
        text: What it does.
        exit_codes: The end of its help.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=text,
        description=text,
        usage=f"resilient {name} [options] -- COMMAND [ARGUMENT ...]",
        epilog=exit_codes,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.set_defaults(usage_error=parser.error)
    return parser


def script_of(arguments: argparse.Namespace, missing: str) -> list[str]:
    """What starts the script, or ``missing`` as the error in the usage."""
    command: list[str] = arguments.command[arguments.command[:1] == ["--"] :]
    if not command:
        arguments.usage_error(missing)
    return command


def _save_options(parser: argparse.ArgumentParser) -> None:
    text = "make every model.fit of the command resumable; checkpoints go to DIR"
    parser.add_argument("--save", metavar="DIR", help=text)
    _option_of_fits(parser, "save_freq", metavar="WHEN", type=_save_freq)
    _option_of_fits(parser, "keep", metavar="N", type=integer)
    _option_of_fits(parser, "allow", metavar="NAME", action="append")


def _option_of_fits(parser: argparse.ArgumentParser, name: str, **how: Any) -> None:
    """Add an option of ``fit``, in the words that describe it there."""
    text = " ".join(described(FitOptions).get(name, "").replace("``", "").split())
    clause = text.split(";")[0]
    default = inspect.signature(FitOptions).parameters[name].default
    more = f"default: {default}" if default else "repeatable"
    text = f"with --save: {clause[:1].lower()}{clause[1:]} ({more})"
    parser.add_argument(f"--{name.replace('_', '-')}", help=text, **how)


def _gang_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    text = "the checkpoint_dir (default: detected)"
    add("--dir", dest="directory", metavar="DIR", help=text)
    add("--nproc", metavar="N", type=integer, help="start N processes (default: 1)")
    text = (
        "seconds that the others get to save when one process has failed (default: 10)"
    )
    add("--gang-grace", metavar="SECONDS", type=_seconds, help=text)


def _restart_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    text = "give up after N restarts (default: no limit)"
    add("--max-restarts", metavar="N", type=partial(integer, least=0), help=text)
    text = "give up when the same failure repeats N times without progress (default: 3)"
    add("--same-failure", metavar="N", type=integer, help=text)
    text = "give up after N restarts without a newer checkpoint (default: 10)"
    add("--no-progress", metavar="N", type=integer, help=text)
    text = "longest wait before the first restart; doubles each time (default: 1)"
    add("--backoff", metavar="SECONDS", type=_seconds, help=text)
    text = "longest wait before any restart (default: 300)"
    add("--max-backoff", metavar="SECONDS", type=_seconds, help=text)


def _hang_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    text = "silence during training that counts as a hang (default: learned; 0: never)"
    add("--hang-timeout", metavar="SECONDS", type=_seconds, help=text)
    text = "longest time to start, or to save (default: 1800, after a first heartbeat)"
    add("--startup-timeout", metavar="SECONDS", type=_seconds, help=text)


def supervise(arguments: argparse.Namespace) -> int:
    """Run the user's command; return the exit code."""
    from resilient.storage.stores import local_path
    from resilient.supervise.options import require_process_groups
    from resilient.supervise.output import Output
    from resilient.supervise.signal_queue import SignalQueue
    from resilient.supervise.supervisor import Supervisor
    from resilient.training.enabled.calls import FITS

    command = script_of(
        arguments,
        "there is no command to run; give one, such as: resilient run -- python "
        "train.py",
    )
    try:
        require_process_groups()
        options = _options(arguments, command)
    except (OSError, TypeError, ValueError, ResilientError) as error:
        sys.stderr.write(f"resilient: {error}\n")
        return 2
    with SignalQueue() as inbox, Output() as output:
        code = Supervisor(options, output, inbox).run()
        save = arguments.save
        if save is not None and not (local_path(save) / FITS).exists():
            output.say(
                "Nothing was saved: the command did not call model.fit of Keras 3, "
                "or it runs a Python without keras-resilient, or runs Python with -E "
                "or -I."
            )
        return code


def _options(arguments: argparse.Namespace, command: list[str]) -> Any:
    from resilient.storage.stores import local_path
    from resilient.supervise.options import Options

    names = {field.name for field in fields(Options)} - {"command"}
    given = {
        name: value
        for name, value in vars(arguments).items()
        if name in names and value is not None
    }
    if "directory" in given:
        given["directory"] = local_path(given["directory"])
    return Options(command, environment=_environment(arguments), **given)


def _environment(arguments: argparse.Namespace) -> dict[str, str]:
    """The environment that enables the command's fits."""
    from resilient.training.enabled import api

    found = {
        each.name: getattr(arguments, each.name, None) for each in fields(FitOptions)
    }
    given = {name: value for name, value in found.items() if value is not None}
    if arguments.save is not None:
        return api.environment(arguments.save, given)
    if given:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        arguments.usage_error(f"{names}: only with --save DIR")
    return {}


def _save_freq(text: str) -> int | str:
    return text if text in ("auto", "epoch") else integer(text)


def integer(text: str, least: int = 1) -> int:
    """Parse an integer of ``least`` or more."""
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
