"""Finds the checkpoint that the arguments name: DIR and STEP, or DIR/step-00001800."""

import argparse
import re
from pathlib import Path

from resilient.errors import message
from resilient.storage import layout

_NUMBER = re.compile(r"[0-9]+|[0-9]{1,3}([,_][0-9]{3})+")
_NAME = re.compile(r"step-([0-9]{8,15})")


def step(text: str) -> int:
    """Parse a step: ``1800``, ``1,800`` or ``step-00001800``."""
    if _NUMBER.fullmatch(text):
        return int(re.sub("[,_]", "", text))
    if named := _NAME.fullmatch(text):
        return int(named[1])
    raise argparse.ArgumentTypeError(f"{text!r} is not a step, such as 1800")


def names_checkpoint(path: Path) -> bool:
    """Whether a path has the name of a checkpoint."""
    return _NAME.fullmatch(path.name) is not None


def split(directory: str, step: int | None) -> tuple[str, int | None]:
    """A run's directory and a step; the directory may be given as a checkpoint in it.

    Raises:
        ValueError: Both name a step, and the steps differ.
    """
    path = Path(directory)
    named = _NAME.fullmatch(path.name)
    if named is None or layout.committed_steps(path):
        return directory, step
    if step not in (None, int(named[1])):
        raise ValueError(
            message(
                "Two different steps are given.",
                received=f"{directory} and {step}",
                hint="Give the step once: in the directory's name, or after it.",
            )
        )
    return str(path.parent), int(named[1])
