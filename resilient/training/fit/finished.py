"""Directories whose run a fit of this process has finished, for a second fit there.

A sweep, or ``fit(epochs=1)`` in a loop, would get the results of the first fit without
a word. Whoever runs a notebook's cell again wants just these.
"""

import logging
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


def check(directory: Path, rates: tuple[float, float] | None) -> None:
    """Nothing is left to train in a directory: say so if this process trained it.

    Args:
        directory: Of the run.
        rates: The script's learning rate then, and another one now; None: the same.

    Raises:
        CheckpointMismatchError: The rate is another, so another run was meant.
    """
    if directory.resolve() not in _directories:
        return
    if rates is not None:
        raise CheckpointMismatchError(
            "An earlier fit of this process finished the run in this directory, with "
            "a different learning rate. Nothing was changed.",
            received=f"{directory}: learning rate {rates[0]:g} then, {rates[1]:g} now",
            hint=f"{_EACH[0].upper()}{_EACH[1:]}. To get the results of that run, "
            'pass resume="must".',
        )
    logger.warning(
        "Nothing is trained: an earlier fit of this process finished the run in %s, "
        "and this one returns its results. If you meant another run, %s.",
        directory,
        _EACH,
    )
