"""Tracks the trainings of this process: those that run, and what they have finished.

A second fit in one directory (a sweep, or ``fit(epochs=1)`` in a loop) would silently
get the first fit's results. Somebody who runs a notebook cell again wants just those.
"""

import contextlib
import logging
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from resilient.errors import CheckpointMismatchError, ResilientError
from resilient.once import forget
from resilient.progress import Progress
from resilient.user_line import ending_at_user_line

if TYPE_CHECKING:  # it loads Keras
    from resilient.training.session import Session

logger = logging.getLogger(__name__)

_EACH = (
    "give each fit its own checkpoint_dir; `with resilient.enabled(DIR):` does this "
    "for every model.fit inside"
)

_threads: dict["Session", int] = {}  # where each was opened
_finished: set[Path] = set()


@contextlib.contextmanager
def under_way(session: "Session") -> Iterator[None]:
    """Inside, this training is running."""
    _threads[session] = threading.get_ident()
    try:
        yield
    finally:
        del _threads[session]
        if not _threads:
            forget()


def is_inside_a_run() -> bool:
    """Whether a run is open in this thread, so that nested calls belong to it."""
    return threading.get_ident() in _threads.values()


@ending_at_user_line
def resumed_from() -> Progress | None:
    """Tell which checkpoint the running fit or loop resumed from.

    Call it from a callback or inside a loop, in any thread. If several trainings run in
    one process, it is about the one started in this thread, or else the latest.

    Returns:
        The checkpoint's ``step``, ``epoch`` and ``batch``: how many batches were
        trained, how many epochs had ended, and how many batches of the next one were
        trained. ``None`` if training started from scratch. After a rollback, it is the
        checkpoint rolled back to.

    Raises:
        ResilientError: No training is running.
    """
    sessions = [*_threads]
    if not sessions:
        raise ResilientError(
            "resumed_from() works only while a fit or a loop is running.",
            hint="Call it from a callback, or inside the loop.",
        )
    here = [s for s in sessions if _threads[s] == threading.get_ident()]
    return (here or sessions)[-1].resumed


def note_finished(directory: Path) -> None:
    """Note that a fit came to its end."""
    _finished.add(directory.resolve())


def check_finished(directory: Path, rates: Mapping[str, tuple[float, float]]) -> None:
    """Nothing is left to train in a directory: warn if this process trained it.

    Args:
        directory: The run's directory.
        rates: The script's learning rates that differ, then and now, by name.

    Raises:
        CheckpointMismatchError: The rate differs, so a different run was meant.
    """
    if directory.resolve() not in _finished:
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
