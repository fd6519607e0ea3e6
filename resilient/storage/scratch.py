"""Redirects a process's checkpoint directories to a scratch directory, on request.

``resilient prove`` runs a script several times. Those runs must not meet each other,
nor the script's own.
"""

import os
import re
from pathlib import Path
from typing import Any

from resilient.storage.files import say_once

VARIABLE = "RESILIENT_SCRATCH"
_FROM = "RESILIENT_SCRATCH_FROM"  # the directory in which the script was started

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")


def environment(directory: Path) -> dict[str, str]:
    """The environment variables that redirect a process started from here.

    Args:
        directory: Where its checkpoint directories go.
    """
    return {VARIABLE: str(directory), _FROM: os.getcwd()}


def in_effect() -> bool:
    """Whether directories are redirected."""
    return bool(os.environ.get(VARIABLE))


def say() -> None:
    """Log that they are, once per process: the variable may have been left over."""
    say_once(
        f"{VARIABLE} is set, as `resilient prove` does: checkpoints go below "
        f"{os.environ[VARIABLE]}. Unset it to save where the script says.",
        of=VARIABLE,
    )


def instead_of(directory: Any) -> Any:
    """The directory to use in place of the one that the script names.

    Invalid values are returned unchanged, and refused elsewhere.
    """
    path = os.fspath(directory) if isinstance(directory, os.PathLike) else directory
    if not (
        in_effect() and isinstance(path, str) and path.strip() and "\0" not in path
    ):
        return directory
    scratch = Path(os.environ[VARIABLE])
    if address := _ADDRESS.match(path):
        return str(scratch.joinpath(address[1], *_parts(path[address.end() :])))
    absolute = Path(os.path.abspath(os.path.expanduser(path)))
    if absolute.is_relative_to(scratch):
        return path
    # Not where the script is by now: it may change its directory between two fits.
    here = os.environ.get(_FROM) or os.getcwd()
    inside = absolute.is_relative_to(here) and absolute != Path(here)
    base = absolute.relative_to(here) if inside else Path("_", *absolute.parts[1:])
    return str(scratch / base)


def read_instead_of(path: Any) -> Any:
    """The same for a path to read: unchanged if nothing was written there."""
    elsewhere = instead_of(path)
    return elsewhere if elsewhere is path or os.path.exists(elsewhere) else path


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".", "..")]
