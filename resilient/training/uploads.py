"""Waits for uploads where a training ends, for as long as that may take."""

import contextlib
import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from resilient.errors import ResilientError, TrainingStopped
from resilient.storage.refusals import not_uploaded

if TYPE_CHECKING:
    from resilient.training.session import Session

logger = logging.getLogger(__name__)

_LOOK = 0.2  # seconds
_SAY_AFTER = 2.0  # seconds
_AFTER_ERROR = 30.0  # seconds: an error ends a training, but need not cost what it did
_LEAVE = 1.0  # seconds before a grace period is over


@contextlib.contextmanager
def awaited(session: "Session") -> Iterator[None]:
    """Wait, when the training inside has ended, until its checkpoints are far away.

    Raises:
        CheckpointWriteError: The object store does not take them.
        DirectoryInUseError: Another run has taken over.
    """
    try:
        yield
    except (KeyboardInterrupt, GeneratorExit) as end:
        if isinstance(end, TrainingStopped):  # of a first Ctrl-C
            _try(session)
        raise
    except TrainingStopped:
        _try(session)
        raise
    except BaseException:
        _try(session, _AFTER_ERROR)
        raise
    _wait(session)
    if not (left := session.options.store.not_uploaded()):
        return
    session.events.emit("not uploaded", error=left)
    if session.options.on_save_error == "warn":
        logger.warning("Some checkpoints are not uploaded: %s", left)
        return
    raise not_uploaded(left)


def _try(session: "Session", limit: float | None = None) -> None:
    """Wait where something else ends the training: that is what is raised."""
    try:
        _wait(session, limit)
    except ResilientError as error:
        logger.warning("%s", error)
    else:
        if left := session.options.store.not_uploaded():
            session.events.emit("not uploaded", error=left)
            logger.warning("Not uploaded in time: %s", left)


def _wait(session: "Session", limit: float | None = None) -> None:
    store, watch, began, said = session.options.store, session.watch, 0.0, False
    while not store.uploaded(_LOOK if began else 0.0):
        began = began or time.monotonic()
        waited = time.monotonic() - began
        if watch.stopping and not watch.requests.leaves(_LEAVE):
            return
        if limit is not None and waited > limit:
            return
        if waited > _SAY_AFTER and not said:
            session.say(f"Waiting for the upload to {store}")
            said = True
        watch.beat("saving")
