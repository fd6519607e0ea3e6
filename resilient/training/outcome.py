"""Ends a training: waits for uploads, and reports how it ended."""

import contextlib
import hashlib
import logging
import math
import sys
import time
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from resilient.errors import ResilientError, RolledBack, TrainingStopped
from resilient.storage.layout import committed_steps
from resilient.storage.refusals import not_uploaded
from resilient.storage.store import Store
from resilient.storage.stores import place

if TYPE_CHECKING:
    from resilient.training.session import Session

logger = logging.getLogger(__name__)

_LOOK = 0.2  # seconds
_SAY_AFTER = 2.0  # seconds
_AFTER_ERROR = 30.0  # seconds: an error ends training, but its work need not be lost
_LONGEST = 500  # characters of a message that are kept
_FRAMES = 5  # innermost frames that are kept


@contextlib.contextmanager
def reported(session: "Session") -> Iterator[None]:
    """Report what ends the training inside, once its last write is done."""
    try:
        yield
    except TrainingStopped as end:
        _preempted(session, end)
        raise
    except RolledBack as end:
        session.say(f"The run continues at {end.progress} when you run it again.")
        raise
    except GeneratorExit:
        _left(session)
        raise
    except BaseException as error:  # a KeyboardInterrupt gets a note, too
        _failed(session, error)
        raise


def _preempted(session: "Session", end: TrainingStopped) -> None:
    # A nested fit reports its own progress.
    ours = session.watch.ended_with is end
    progress = end.progress if ours else session.watch.progress
    saved = ours and end.saved
    session.events.emit(
        "preempted", **progress._asdict(), reason=end.reason, saved=saved
    )
    what = "saved" if saved else f"not saved. Run it again, and {_again(session)}"
    session.say(f"Stopped at {progress} by {end.reason}: {what}.", within_epoch=True)


def _failed(session: "Session", error: BaseException) -> None:
    newest, progress = _newest(session.options.store), session.watch.progress
    found = traceback.TracebackException.from_exception(error)
    cls = f"{type(error).__module__}.{type(error).__qualname__}"
    places = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in found.stack]
    text = "\n".join([cls, *places])
    # Our own errors say what to do, and before the first batch the call itself is
    # wrong: another try would fail as well.
    if session.training and not isinstance(error, ResilientError):
        error.add_note(
            f"keras-resilient: training failed after {progress}. "
            f"Run it again, and {_again(session)}."
        )
    # What a supervisor needs to tell failures apart.
    session.events.emit(
        "failed",
        **progress._asdict(),
        error=cls.removeprefix("builtins."),
        message=str(found)[:_LONGEST],
        where=places[-_FRAMES:],
        signature=hashlib.sha256(text.encode()).hexdigest()[:16],
        resume_step=None if newest is None else newest.step,
    )


def _left(session: "Session") -> None:
    """A loop was left midway; a generator cannot see why."""
    end = session.watch.ended_with
    if end is not None:  # the exception that interrupted its body
        _preempted(session, end)
        return
    session.events.emit("ended", **session.watch.progress._asdict())
    plain = sys.excepthook

    def hook(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        _failed(session, error)  # if it ends this process, it was an error
        plain(kind, error, trace)

    sys.excepthook = hook


def _again(session: "Session") -> str:
    store = session.options.store
    newest = _newest(store)
    if newest is None:
        with contextlib.suppress(OSError):
            if committed_steps(store.directory):
                return "it resumes once the checkpoints that are there can be read"
        return "it starts from scratch (there is no checkpoint yet)"
    where = f"it resumes at {newest.progress} from {place(store, newest)}"
    auto = session.options.resume in ("auto", "must")
    return where if auto else f'with resume="auto" {where}'


def _newest(store: Store) -> Any:
    try:
        return next(reversed(store.checkpoints()), None)
    except OSError:  # the directory is gone; the original error matters more
        return None


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
        ended = isinstance(end, KeyboardInterrupt | GeneratorExit)
        limit = 0.0 if ended else _AFTER_ERROR
        if isinstance(end, TrainingStopped):  # which may be a KeyboardInterrupt
            limit = math.inf
        try:
            _wait(session, limit)
            _report_left(session)
        except ResilientError as error:
            logger.warning("%s", error)
        raise
    _wait(session, math.inf)
    stopping = session.watch.stopping
    if stopping or session.options.on_save_error == "warn":
        if _report_left(session) and stopping:
            session.watch.stop(saved=True)
    elif left := session.options.store.not_uploaded():
        session.events.emit("not uploaded", error=left)
        raise not_uploaded(left)


def _wait(session: "Session", limit: float) -> None:
    store, watch, began, said = session.options.store, session.watch, 0.0, False
    before = watch.stopping
    try:
        while not store.uploaded(_LOOK if began else 0.0):
            began = began or time.monotonic()
            waited = time.monotonic() - began
            if waited >= limit or not watch.requests.leaves():
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
    except KeyboardInterrupt:
        _report_left(session)
        raise


def _report_left(session: "Session") -> bool:
    """Report what is not uploaded, and return whether there is anything."""
    left = session.options.store.not_uploaded()
    if left:
        session.events.emit("not uploaded", error=left)
        logger.warning(
            "Not uploaded: %s. Run the script again on this machine to continue the "
            "upload.",
            left,
        )
    return bool(left)
