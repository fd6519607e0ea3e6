"""The command line's arguments and help."""

import argparse
from collections.abc import Callable
from typing import Any

from resilient._version import __version__
from resilient.cli import (
    commands,
    contents,
    convert,
    diff,
    prove,
    report,
    watch,
)
from resilient.cli import run as run_command
from resilient.cli import text as texts
from resilient.cli.places import step
from resilient.errors import message
from resilient.policies import KeepPolicy, best, latest
from resilient.serialization import JSON

_DESCRIPTION = "Run training and restart it; inspect, convert and clean up checkpoints."

_GROUPS = {
    "run": ("run", "prove"),
    "inspect": ("ls", "show", "report", "watch", "diff", "verify"),
    "convert": ("export", "import"),
    "clean up": ("prune",),
}

_END = """\
`resilient COMMAND --help` lists the options of a command.

exit codes of all but run and prove:
  0    success
  1    damage: something fails verification, or has no readable manifest;
       of diff: the states are different
  2    wrong usage
  3    not found: no such directory, no checkpoint, or none at that step
  4    the directory is in use by a running process
  5    the file system denies reading or writing, another version wrote a checkpoint,
       one is not signed with RESILIENT_KEY, or the command cannot do what was asked
  130  Ctrl-C ended it
  141  the reader of the output (such as `head`) closed it
"""


class _Parser(argparse.ArgumentParser):
    """Groups the commands by purpose.

    Attributes:
        commands: All commands, by name.
    """

    commands: dict[str, argparse.ArgumentParser]

    def format_help(self) -> str:
        parts = [self.format_usage(), f"{self.description}\n"]
        for group, names in _GROUPS.items():
            lines = (f"  {n:<12}{self.commands[n].description}\n" for n in names)
            parts.append(f"{group}:\n{''.join(lines)}")
        options = "  -h, --help  show this help\n  --version   show the version\n"
        return "\n".join([*parts, f"options:\n{options}", _END])


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = _Parser(prog="resilient", description=_DESCRIPTION)
    version = f"keras-resilient {__version__}"
    parser.add_argument("--version", action="version", version=version)
    subparsers = parser.add_subparsers(
        required=True, metavar="COMMAND", parser_class=argparse.ArgumentParser
    )

    def add(
        name: str,
        run: Callable[..., Any],
        report: Callable[[JSON], None],
        text: str,
        directory: bool = True,
    ) -> argparse.ArgumentParser:
        command = subparsers.add_parser(name, help=text, description=text)
        if directory:
            command.add_argument("directory", metavar="DIR", help="the checkpoint_dir")
        command.add_argument("--json", action="store_true", help="print JSON")
        command.set_defaults(
            run=run,
            report=lambda data, _arguments: report(data),
            check=lambda _: None,
            makes_directory=False,
            takes_checkpoint=False,
            usage_error=command.error,
        )
        return command

    run_command.add_to(subparsers)
    prove.add_to(subparsers)
    _add_lookers(add)
    convert.add_export(add)
    convert.add_import(add)
    _add_prune(add)
    parser.commands = subparsers.choices
    return parser


def _add_lookers(add: convert.Add) -> None:
    text = "List the checkpoints of a run, or the runs in a directory."
    ls = add("ls", commands.ls, texts.ls, text, directory=False)
    where = "a checkpoint_dir, or a directory of several (default: . or runs)"
    ls.add_argument("directory", metavar="DIR", nargs="?", help=where)
    text = "Show what one checkpoint holds."
    show = add("show", commands.show, lambda _: None, text, directory=False)
    _add_checkpoint(show)
    newest = "step of the checkpoint (default: the newest)"
    show.add_argument("step", metavar="STEP", type=step, nargs="?", help=newest)
    show.add_argument("--files", action="store_true", help="list files and checksums")
    show.set_defaults(report=lambda data, given: contents.show(data, files=given.files))
    report.add_to(add)
    watch.add_to(add)
    diff.add_diff(add)
    text = "Read every byte of the checkpoints and compare checksums."
    verify = add("verify", commands.verify, texts.verify, text, directory=False)
    _add_checkpoint(verify)
    verify.set_defaults(step=None)


def _add_checkpoint(command: argparse.ArgumentParser) -> None:
    text = "the checkpoint_dir, or one checkpoint: DIR/step-00001800"
    command.add_argument("directory", metavar="DIR", help=text)
    command.set_defaults(takes_checkpoint=True)


def _add_prune(add: convert.Add) -> None:
    text = "Delete all checkpoints except the newest and the best."
    prune = add("prune", commands.prune, texts.prune, text)
    integer = run_command.integer
    prune.add_argument(
        "--keep", metavar="N", type=integer, required=True, help="keep the N newest"
    )
    prune.add_argument("--best", metavar="N", type=integer, help="also keep the N best")
    prune.add_argument(
        "--monitor", metavar="METRIC", help="the metric that decides which are best"
    )
    prune.add_argument("--mode", choices=("auto", "min", "max"), default="auto")
    prune.add_argument(
        "--dry-run", action="store_true", help="only show what would be deleted"
    )
    prune.set_defaults(check=_check_prune)


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
