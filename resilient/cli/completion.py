"""``resilient completion``: prints a shell's completion script.

``shtab`` writes the script. Nothing else needs it, so it is an optional extra.
"""

import argparse
import sys
from typing import Any

from resilient.errors import message

_SHELLS = ("bash", "zsh")
_FAILED = 5
_FILES = ("FILE", "PATH", "SOURCE")
_DIRECTORIES = ("DIR", "A", "B")


def add_to(commands: Any, parser: argparse.ArgumentParser) -> None:
    """Add the command to those of ``resilient``.

    Args:
        commands: What ``add_subparsers`` returned.
        parser: The parser of all commands.
    """
    text = "Print a completion script for your shell."
    command = commands.add_parser("completion", help=text, description=text)
    command.add_argument("shell", choices=_SHELLS)
    command.set_defaults(
        complete=lambda arguments: _print(arguments.shell, parser, commands.choices),
        usage_error=command.error,
    )


def _print(
    shell: str,
    parser: argparse.ArgumentParser,
    commands: dict[str, argparse.ArgumentParser],
) -> int:
    try:
        import shtab
    except ImportError:
        text = message(
            "Shell completion needs shtab, which is not installed.",
            hint='Run: pip install "keras-resilient[completion]"',
        )
        print(f"resilient: {text}", file=sys.stderr)
        return _FAILED
    for command in commands.values():
        for action in command._actions:
            if action.metavar in _DIRECTORIES:
                action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
            elif action.metavar in _FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(parser, shell))
    return 0
