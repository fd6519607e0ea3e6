"""Tracks the trainings running in this process, and what each resumed from."""

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
    """Inside, this training is running."""
    _threads[session] = threading.get_ident()
    try:
        yield
    finally:
        del _threads[session]


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
