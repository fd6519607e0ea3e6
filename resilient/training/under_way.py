"""The trainings that are under way in this process, and what each resumed from."""

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from resilient.errors import ResilientError
from resilient.progress import Progress
from resilient.user_line import ending_at_user_line

if TYPE_CHECKING:  # it loads Keras
    from resilient.training.session import Session

_threads: dict["Session", int] = {}  # where each was opened


@contextlib.contextmanager
def under_way(session: "Session") -> Iterator[None]:
    """Inside, this training is."""
    _threads[session] = threading.get_ident()
    try:
        yield
    finally:
        del _threads[session]


def is_inside_a_run() -> bool:
    """Whether a run is open in this thread: what is called now belongs to it."""
    return threading.get_ident() in _threads.values()


@ending_at_user_line
def resumed_from() -> Progress | None:
    """Where the checkpoint is that the fit or loop under way resumed from.

    To be called from a callback or inside of a loop, in any thread; of several
    trainings in one process, it tells of the one that was begun in this thread, or else
    last.

    Returns:
        Its ``step``, ``epoch`` and ``batch``: how many batches are trained, how many
        epochs have ended, and how many batches of the next one are trained. ``None`` if
        training began anew. After a rollback, of the checkpoint that it went back to.

    Raises:
        ResilientError: No training is under way.
    """
    sessions = [*_threads]
    if not sessions:
        raise ResilientError(
            "resumed_from() works only while a fit or a loop is running.",
            hint="Call it from a callback, or inside of the loop.",
        )
    here = [s for s in sessions if _threads[s] == threading.get_ident()]
    return (here or sessions)[-1].resumed
