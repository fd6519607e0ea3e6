"""How a fit ended: told to the events and to the user, and the error goes on."""

import contextlib
import hashlib
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from resilient.errors import Preempted, ResilientError, RolledBack
from resilient.preemption.watch import Watch
from resilient.saving.choose import Resume
from resilient.storage.store import Store
from resilient.telemetry.console import Notifier
from resilient.telemetry.events import Events

_LONGEST = 500  # characters of a message that are kept
_FRAMES = 5  # innermost frames that are kept


@contextlib.contextmanager
def reported(
    events: Events, watch: Watch, store: Store, resume: Resume, say: Notifier
) -> Iterator[None]:
    """Tell of what ends the fit that runs inside, once its last write is over."""
    ends = OutcomeReporter(events, watch, store, resume, say)
    try:
        yield
    except Preempted as end:
        ends.preempted(end)
        raise
    except RolledBack as end:
        say(f"Goes on at {end.progress} when this is run again.")
        raise
    except GeneratorExit:
        ends.left()
        raise
    except BaseException as error:  # a KeyboardInterrupt has a right to a note, too
        ends.failed(error)
        raise


@dataclass(frozen=True)
class OutcomeReporter:
    """Tells events and the user how a training ended."""

    events: Events
    watch: Watch
    store: Store
    resume: Resume
    say: Notifier

    def preempted(self, end: Preempted) -> None:
        # That of another fit inside of this one tells of the other one's state.
        ours = self.watch.raised(end)
        progress = end.progress if ours else self.watch.progress
        saved = ours and end.saved
        told = {"reason": end.reason, "saved": saved}
        self.events.emit("preempted", **progress.to_json(), **told)
        what = "saved" if saved else f"not saved, {_again(self.store, self.resume)}"
        self.say(f"Stopped at {progress} by {end.reason}: {what}.", within_epoch=True)

    def failed(self, error: BaseException) -> None:
        newest, progress = _newest(self.store), self.watch.progress
        if not isinstance(error, ResilientError):  # which say themselves what to do
            error.add_note(
                f"keras-resilient: training failed after {progress}; "
                f"run again, {_again(self.store, self.resume)}."
            )
        step = None if newest is None else newest.step
        told = {**_facts(error), "resume_step": step}
        self.events.emit("failed", **progress.to_json(), **told)

    def left(self) -> None:
        """A loop was left in the middle; a generator does not see what for."""
        end = self.watch.ended_with
        if end is not None:  # what interrupted its body
            self.preempted(end)
            return
        self.events.emit("ended", **self.watch.progress.to_json())
        plain = sys.excepthook

        def hook(
            kind: type[BaseException], error: BaseException, trace: TracebackType | None
        ) -> None:
            self.failed(error)  # if that is what ends this process, it was an error
            plain(kind, error, trace)

        sys.excepthook = hook


def _again(store: Store, resume: Resume) -> str:
    newest = _newest(store)
    if newest is None:
        return "it begins anew (there is no checkpoint yet)"
    where = f"it goes on at {newest.progress} from {newest.path}"
    return where if resume in ("auto", "must") else f'with resume="auto" {where}'


def _newest(store: Store) -> Any:
    return next(reversed(store.checkpoints()), None)


def _facts(error: BaseException) -> dict[str, Any]:
    """What a supervisor needs to tell one failure from another."""
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
    except Exception:  # the user's own error matters more than its text
        return "(its text cannot be had)"
