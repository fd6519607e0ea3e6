"""Remembers which runs this process has finished, for a second fit in one's directory.

A sweep, or ``fit(epochs=1)`` in a loop, would silently get the first fit's results.
Somebody who runs a notebook cell again wants just those.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

from resilient.errors import CheckpointMismatchError

logger = logging.getLogger(__name__)

_EACH = (
    "give each fit its own checkpoint_dir; `with resilient.enabled(DIR):` does this "
    "for every model.fit inside"
)

_directories: set[Path] = set()


def note(directory: Path) -> None:
    """A fit came to its end."""
    _directories.add(directory.resolve())


def check(directory: Path, rates: Mapping[str, tuple[float, float]]) -> None:
    """Nothing is left to train in a directory: warn if this process trained it.

    Args:
        directory: The run's directory.
        rates: The script's learning rates that differ, then and now, by name.

    Raises:
        CheckpointMismatchError: The rate differs, so a different run was meant.
    """
    if directory.resolve() not in _directories:
        return
    for name, (then, now) in rates.items():
        raise CheckpointMismatchError(
            "An earlier fit in this process finished the run in this directory, with "
            "a different learning rate. Nothing was changed.",
            received=f"{directory}: {name} {then:g} then, {now:g} now",
            hint=f"{_EACH[0].upper()}{_EACH[1:]}. To get the results of that run, "
            'pass resume="must".',
        )
    logger.warning(
        "Nothing left to train: an earlier fit in this process finished the run in "
        "%s, and this one returns its results. If you meant a different run, %s.",
        directory,
        _EACH,
    )
