"""``resilient run``: its arguments, and the call of the supervisor."""

import argparse
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

from resilient.cli.arguments import add_script, number, script_of
from resilient.errors import ResilientError
from resilient.storage.stores import local_path
from resilient.training.options import FitOptions

_ABOUT = "Run a training script, and restart it when it dies."
_OF_FITS = """\
--save-freq WHEN: when to save: "auto", "epoch" or a number of batches (default: auto)
--keep N: how many checkpoints to keep (default: 3)
--allow NAME: differences from the checkpoint to accept, such as "data" (repeatable)
"""
_OPTIONS = """\
--save DIR: make every model.fit of the command resumable; checkpoints go to DIR
--dir DIR: the checkpoint_dir (default: detected)
--nproc N: start N processes (default: 1)
--gang-grace SECONDS: for the others to save when one has failed (default: 10)
--max-restarts COUNT: give up after so many restarts (default: no limit)
--same-failure N: give up when a failure repeats N times in vain (default: 3)
--no-progress N: give up after N restarts without a newer checkpoint (default: 10)
--backoff SECONDS: longest wait before the first restart, then doubled (default: 1)
--hang-timeout SECONDS: silence that counts as a hang (default: 1800; 0: never)
--startup-timeout SECONDS: to start, or to save (default: 1800 after a heartbeat)
"""
_TYPES: dict[str, Callable[[str], Any]] = {
    "DIR": str,
    "N": number,
    "COUNT": partial(number, least=0),
    "SECONDS": partial(number, kind=float, least=0),
    "WHEN": lambda text: int(text) if text.isdecimal() else text,
    "NAME": str,
}


def add_to(commands: Any) -> None:
    """Add the command to those of ``resilient``.

    Args:
        commands: What ``add_subparsers`` returned.
    """
    parser = commands.add_parser(
        "run", help=_ABOUT, description=_ABOUT, allow_abbrev=False
    )
    _add_options(parser, _OPTIONS)
    _add_options(parser, _OF_FITS, "with --save: ")
    add_script(parser)
    parser.set_defaults(run=_run, json=False)


def _add_options(parser: argparse.ArgumentParser, lines: str, start: str = "") -> None:
    for line in lines.splitlines():
        option, text = line.split(": ", 1)
        name, metavar = option.split()
        parser.add_argument(
            name,
            metavar=metavar,
            type=_TYPES[metavar],
            action="append" if metavar == "NAME" else "store",
            help=start + text,
        )


def _run(arguments: argparse.Namespace) -> tuple[int, None, Callable[..., None]]:
    """Run the user's command; the exit status is that of its last attempt."""
    from resilient.supervise.supervisor import Supervisor
    from resilient.training.enabled.calls import FITS

    try:
        options = _options(arguments)
    except (OSError, TypeError, ResilientError, RuntimeError) as error:
        raise ValueError(str(error)) from error  # wrong usage, all of them
    supervisor, save = Supervisor(options), arguments.save
    status = supervisor.run(partial(_missing, save, supervisor.say))
    if save is not None and not (local_path(save) / FITS).exists():
        supervisor.say(
            "Nothing was saved: the command did not call model.fit of Keras 3, or its "
            "call was refused (see above), or it runs a Python without "
            "keras-resilient, or runs Python with -E or -I."
        )
    return status, None, lambda _: None


def _missing(save: str | None, say: Callable[[str], None]) -> str:
    """What a command that ended well left undone of its fits, in words."""
    from resilient.training.enabled.calls import require_ended, saved_in

    if save is not None:
        directory = local_path(save)
        try:
            require_ended(saved_in(directory).calls, directory)
        except ResilientError as error:
            say(str(error))
            return error.problem.rstrip(".")
    return ""


def _options(arguments: argparse.Namespace) -> Any:
    from resilient.supervise.options import (
        Options,
        require_process_groups,
        require_program,
    )
    from resilient.training.enabled import api

    command = script_of(arguments)
    require_process_groups()
    require_program(command)
    given = {name: each for name, each in vars(arguments).items() if each is not None}
    of_fits = {name: given[name] for name in _names(FitOptions) & set(given)}
    own = {name: given[name] for name in _names(Options) & set(given) - {"command"}}
    if "dir" in given:
        own["directory"] = local_path(given["dir"])
    if "save" in given:
        own["environment"] = api.environment(given["save"], of_fits)
    elif of_fits:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in sorted(of_fits))
        raise ValueError(f"{names}: only with --save DIR")
    return Options(command, **own)


def _names(options: Any) -> set[str]:
    return {field.name for field in fields(options)}
