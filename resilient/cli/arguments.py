"""What the commands take, and how they open the run that is named."""

import argparse
import contextlib
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from resilient.errors import CheckpointNotFoundError, ResilientError
from resilient.storage import quarantine
from resilient.storage.layout import find_step
from resilient.storage.store import Store
from resilient.storage.stores import local_path, open_readonly

Add = Callable[..., argparse.ArgumentParser]

_PARENT_AND_NAME = re.compile(r"(?:(.+)[/\\])?([^/\\]+)[/\\]*")
_NAME_A_RUN = (
    "Name the checkpoint_dir of a run that has saved: `resilient report DIR` lists the "
    "runs below DIR."
)


class Location(NamedTuple):
    """A run's directory, and the step of one checkpoint in it if that is named."""

    directory: str
    step: int | None = None


def run_location(text: str) -> Location:
    """Parse the directory of a run, or an address."""
    try:
        local_path(text)
    except (OSError, ResilientError, RuntimeError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return Location(text)


def checkpoint_location(text: str) -> Location:
    """Parse the directory of a run, or of one checkpoint in it."""
    named = _PARENT_AND_NAME.fullmatch(text)
    if named is None or (step := find_step(named[2])) is None:
        return run_location(text)
    return run_location(named[1] or ".")._replace(step=step)


def number(text: str, kind: type[int] | type[float] = int, least: int = 1) -> float:
    """Parse a number of ``least`` or more."""
    with contextlib.suppress(ValueError):
        if least <= (found := kind(text)) < math.inf:
            return found
    what = "an integer" if kind is int else "a number"
    raise argparse.ArgumentTypeError(f"{text!r} is not {what} of {least} or more")


# What ``add_argument`` takes for a run, and for a checkpoint.
RUN: dict[str, Any] = {
    "metavar": "DIR",
    "type": run_location,
    "help": "the checkpoint_dir of a run",
}
CHECKPOINT: dict[str, Any] = {
    "metavar": "DIR",
    "type": checkpoint_location,
    "help": "the same (its newest checkpoint), or one: DIR/step-00001800",
}


@contextlib.contextmanager
def opened(location: Location) -> Iterator[Store]:
    """The store of a run that has checkpoints, if only in quarantine.

    Raises:
        CheckpointNotFoundError: It has none.
    """
    with open_readonly(location.directory) as store:
        if not (store.steps() or quarantine.entries(store.directory)):
            raise nothing("There is no checkpoint in", store)
        yield store


def nothing(what: str, store: Store) -> CheckpointNotFoundError:
    """The error for a directory that is missing or has nothing to show."""
    return CheckpointNotFoundError(f"{what} {store}.", hint=_NAME_A_RUN)


def add_script(parser: argparse.ArgumentParser) -> None:
    """Let a command take the one that starts the user's script."""
    parser.usage = f"{parser.prog} [options] -- COMMAND [ARGUMENT ...]"
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def script_of(arguments: argparse.Namespace) -> list[str]:
    """What starts the user's script.

    Raises:
        ValueError: Nothing.
    """
    command: list[str] = arguments.command[arguments.command[:1] == ["--"] :]
    if not command:
        raise ValueError(
            "There is no command; give one, such as: resilient run -- python train.py"
        )
    return command
