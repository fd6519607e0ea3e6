"""Waits for uploads when training ends, as long as they may take."""

import contextlib
import logging
import math
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
_AFTER_ERROR = 30.0  # seconds: an error ends training, but its work need not be lost
_LEAVE = 1.0  # seconds before the grace period ends


@contextlib.contextmanager
def awaited(session: "Session") -> Iterator[None]:
    """After the training inside has ended, wait until its checkpoints are uploaded.

    Raises:
        CheckpointWriteError: The object store does not accept them.
        DirectoryInUseError: Another run has taken over.
    """
    try:
        yield
    except BaseException as end:
        _try(session, _limit(end))
        raise
    _wait(session, math.inf)
    if not (left := session.options.store.not_uploaded()):
        return
    if session.watch.stopping:
        _tell(session, left)
        session.watch.stop(saved=True)
    if session.options.on_save_error == "warn":
        _tell(session, left)
        return
    session.events.emit("not uploaded", error=left)
    raise not_uploaded(left)


def _limit(end: BaseException) -> float:
    """Seconds to wait if this exception ends training."""
    if isinstance(end, TrainingStopped):
        return math.inf
    at_once = isinstance(end, KeyboardInterrupt | GeneratorExit)
    return 0.0 if at_once else _AFTER_ERROR


def _try(session: "Session", limit: float) -> None:
    """Wait after an exception has ended training; that exception is raised."""
    try:
        _wait(session, limit)
    except ResilientError as error:
        logger.warning("%s", error)
    else:
        if left := session.options.store.not_uploaded():
            _tell(session, left)


def _wait(session: "Session", limit: float) -> None:
    store, watch, began, said = session.options.store, session.watch, 0.0, False
    before = watch.stopping
    while not _uploaded(session, _LOOK if began else 0.0):
        began = began or time.monotonic()
        waited = time.monotonic() - began
        if waited >= limit or not watch.requests.leaves(_LEAVE):
            return
        stop = watch.requests.stop
        if stop is not None and not before and math.isinf(stop.until):
            return  # a first Ctrl-C: training is over, so it can stop only this
        if waited > _SAY_AFTER and not said:
            session.say(
                f"Waiting for the upload to {store} (press Ctrl-C to stop waiting)"
            )
            said = True
        watch.beat("saving")


def _uploaded(session: "Session", seconds: float) -> bool:
    try:
        return session.options.store.uploaded(seconds)
    except KeyboardInterrupt:
        if left := session.options.store.not_uploaded():
            _tell(session, left)
        raise


def _tell(session: "Session", left: str) -> None:
    session.events.emit("not uploaded", error=left)
    logger.warning(
        "Not uploaded: %s. Run the script again on this machine to continue the "
        "upload.",
        left,
    )
