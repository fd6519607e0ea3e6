"""Reports how training ended, in the events and to the user."""

import contextlib
import hashlib
import sys
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from resilient.errors import ResilientError, RolledBack, TrainingStopped
from resilient.storage.layout import committed_steps
from resilient.storage.store import Store
from resilient.storage.stores import place

if TYPE_CHECKING:
    from resilient.training.session import Session

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
    told = {"reason": end.reason, "saved": saved}
    session.events.emit("preempted", **progress._asdict(), **told)
    what = "saved" if saved else f"not saved. Run it again, and {_again(session)}"
    session.say(f"Stopped at {progress} by {end.reason}: {what}.", within_epoch=True)


def _failed(session: "Session", error: BaseException) -> None:
    newest, progress = _newest(session.options.store), session.watch.progress
    # Our own errors say what to do, and before the first batch the call itself is
    # wrong: another try would fail as well.
    if session.training and not isinstance(error, ResilientError):
        error.add_note(
            f"keras-resilient: training failed after {progress}. "
            f"Run it again, and {_again(session)}."
        )
    step = None if newest is None else newest.step
    told = {**_facts(error), "resume_step": step}
    session.events.emit("failed", **progress._asdict(), **told)


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


def _facts(error: BaseException) -> dict[str, Any]:
    """What a supervisor needs to tell failures apart."""
    cls = f"{type(error).__module__}.{type(error).__qualname__}"
    frames = traceback.extract_tb(error.__traceback__)
    places = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
    text = "\n".join([cls, *places])
    return {
        "error": cls.removeprefix("builtins."),
        "message": _text(error)[:_LONGEST],
        "where": places[-_FRAMES:],
        "signature": hashlib.sha256(text.encode()).hexdigest()[:16],
    }


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # the user's error matters more than its text
        return "(its text is not available)"
