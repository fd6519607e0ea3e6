"""This library's errors, all with one base class, and checks of numeric arguments.

A message says what is wrong, then what was ``Received:``, then what to do. It may quote
files from strangers, so terminal control characters are escaped.
"""

import math
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from resilient.progress import Progress

# Control characters, line separators, characters that reorder text, and lone
# surrogates, which no terminal can show.
_CONTROLS = r"\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_UNPRINTABLE = re.compile(rf"[\x00-\x1f{_CONTROLS}]")
_UNPRINTABLE_IN_LINES = re.compile(rf"[\x00-\x08\x0b-\x1f{_CONTROLS}]")

# What to do about a checkpoint whose bytes are not those that were written.
ANOTHER_STEP = (
    "Use another step that `resilient ls` lists; to resume from it, pass resume=<step>."
)


class ResilientError(Exception):
    """Base class of every error raised by keras-resilient.

    Attributes:
        problem: What is wrong, as a whole sentence.
        received: What came instead; None where that would add nothing.
        hint: What to do about it; None where nothing can be done.
    """

    def __init__(
        self,
        problem: str,
        *,
        received: object = None,
        hint: str | None = None,
        **more: str | None,
    ) -> None:
        super().__init__(message(problem, received=received, hint=hint), **more)
        self.problem, self.hint = problem, hint
        self.received = None if received is None else str(received)


class CheckpointNotFoundError(ResilientError):
    """The requested checkpoint does not exist."""


class CorruptCheckpointError(ResilientError):
    """Checkpoints exist, but none of them passes verification."""


class UntrustedCheckpointError(ResilientError):
    """``RESILIENT_KEY`` is set, and this checkpoint is not signed with it."""


class CheckpointMismatchError(ResilientError):
    """A checkpoint belongs to a different model, data, callbacks or settings."""


class CheckpointReadError(ResilientError, OSError):
    """A checkpoint cannot be read right now. It is not damaged, and stays in place."""


class CheckpointWriteError(ResilientError):
    """A checkpoint could not be written; earlier ones are intact."""


class DirectoryInUseError(ResilientError):
    """Another run that is still alive holds the checkpoint directory."""


class DataNotResumableError(ResilientError):
    """The training data has no position that a resume could return to."""


class DataWorkerError(ResilientError):
    """A worker process that prepares batches died.

    On TensorFlow, one of TensorFlow's own errors carries this text instead.
    """


class NotSupportedError(ResilientError):
    """Something that cannot be resumed exactly (yet), and is therefore refused."""


class NotExactError(ResilientError):
    """A resumed run does not repeat what was trained before the kill."""


class PeerLostError(ResilientError):
    """Another process of the same training died, or went silent."""


class BackendNotAvailableError(ResilientError, ImportError):
    """The Keras backend, or a library its adapter needs, is not installed.

    Attributes:
        name: The missing module, as in every ``ImportError``.
    """


class DivergedError(ResilientError):
    """The loss is not finite, or far above its recent level."""


class TrainingStopped(BaseException):
    """Training was asked to stop, and did; scripts get ``Preempted``.

    Attributes:
        reason: Who asked: ``"SIGTERM"``, ``"SIGUSR1"``, ``"SIGINT"``, ``"stop file"``,
            or the text of a cloud's notice.
        progress: Where training was.
        saved: Whether the state at that moment was saved; if not, the next attempt
            resumes from the last checkpoint.
    """

    status: int | None = None

    def __init__(self, reason: str, progress: "Progress", saved: bool) -> None:
        super().__init__(self.status)
        self.reason, self.progress, self.saved = reason, progress, saved

    def __reduce__(self) -> tuple[object, ...]:  # launchers pickle what ends a worker
        return type(self), (self.reason, self.progress, self.saved)


class Preempted(TrainingStopped, SystemExit):
    """Training stopped on request. Unless caught, it exits with status 143 (SIGTERM).

    Run the same script again to continue. In IPython and Jupyter, ``CellStopped`` is
    raised instead.
    """

    status = 143


class Interrupted(Preempted, KeyboardInterrupt):
    """``Preempted`` after Ctrl-C: also a ``KeyboardInterrupt``. Exit status 130."""

    status = 130


class CellStopped(TrainingStopped, KeyboardInterrupt):
    """Training stopped in IPython or Jupyter: this ends the cell, not the session.

    Run the cell again to continue.
    """

    def __str__(self) -> str:
        where = "" if self.saved else " from the last checkpoint"
        return f"Stopped at {self.progress}. Run this cell again to continue{where}."

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: the message, without a traceback."""
        return [str(self)]


class RolledBack(BaseException):
    """The loss was bad. The run was rolled back on disk; run it again to continue.

    Only data other than arrays needs it: this process cannot rewind its iterators. In a
    script it is also a ``SystemExit``: unless caught, it exits with status 75, and
    ``resilient run`` starts it again. In IPython and Jupyter it ends the cell.

    Attributes:
        progress: Where the next attempt continues.
    """

    status = 75  # EX_TEMPFAIL

    def __init__(self, progress: "Progress") -> None:
        super().__init__(self.status)
        self.progress = progress

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.progress,)

    def __str__(self) -> str:
        return (
            f"Went back to {self.progress}. To continue, create the data and fit again."
        )

    _render_traceback_ = CellStopped._render_traceback_


class ScriptRolledBack(RolledBack, SystemExit):
    """``RolledBack`` in a script: also a ``SystemExit``."""


class NotExactWarning(UserWarning):
    """Says once what a resumed run will not reproduce bit for bit, and why."""


class Text(str):
    """Builds the text of an error."""

    __slots__ = ()


def message(problem: str, *, received: object = None, hint: str | None = None) -> Text:
    """The text of an error in our common format; see ``ResilientError``."""
    got = None
    if received is not None:
        listed = str(received).startswith("\n")
        got = f"Received:{received}" if listed else f"Received: {received}"
    parts = [part for part in (problem, got, hint) if part is not None]
    return Text(printable("\n".join(parts), lines=True))


def printable(text: str, *, lines: bool = False) -> str:
    r"""The text with control characters escaped, such as ``\u001b`` for escape.

    JSON stays JSON with the same meaning.

    Args:
        text: Untrusted text.
        lines: Whether to keep line ends and tabs; otherwise it becomes one line.
    """
    odd = _UNPRINTABLE_IN_LINES if lines else _UNPRINTABLE
    return odd.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def warn_not_exact(what: str, names: Sequence[str]) -> None:
    """Say what is not exact, and name every instance, in one warning."""
    warnings.warn(
        f"Not bit-exact: {printable(what)}:\n  " + "\n  ".join(map(printable, names)),
        NotExactWarning,
        stacklevel=_user_level(),
    )


class WarnOnce:
    """Warns like ``warn_not_exact``, once for each name; names may have lines."""

    def __init__(self) -> None:
        self._said: set[tuple[str, str]] = set()

    def __call__(self, what: str, names: Sequence[str] | Mapping[str, str]) -> None:
        lines = names if isinstance(names, Mapping) else {name: name for name in names}
        new = [name for name in lines if (what, name) not in self._said]
        self._said.update((what, name) for name in new)
        if new:
            warn_not_exact(what, [lines[name] for name in new])


def _user_level() -> int:
    """Stack level of the first caller outside this package, Keras and contexts."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in ("resilient", "keras", "contextlib"):
            break
        frame, level = frame.f_back, level + 1
    return level


def require_integer(
    value: object,
    name: str,
    *,
    least: int = 1,
    most: float = math.inf,
    or_else: str = "",
) -> int:
    """``value`` as an int, or TypeError or ValueError.

    Args:
        value: The argument.
        name: Its name.
        least: The smallest allowed value.
        most: The largest allowed value.
        or_else: What else is allowed.
    """
    integral = isinstance(value, Integral) and not isinstance(value, bool)
    if integral and least <= (found := int(cast(Integral, value))) <= most:
        return found
    allowed = f"of {least} or more" if most == math.inf else f"from {least} to {most}"
    what = f"{name} must be an integer {allowed}{or_else}."
    text = message(what, received=repr(value))
    raise ValueError(text) if integral else TypeError(text)


def require_number(value: object, name: str, *, below: float = math.inf) -> float:
    """``value`` as a positive float below a limit, or TypeError or ValueError."""
    real = isinstance(value, Real) and not isinstance(value, bool)
    if real and 0 < (found := float(cast(Real, value))) < below:
        return found
    limit = "and finite" if below == math.inf else f"and below {below:g}"
    text = message(f"{name} must be a number above 0 {limit}.", received=repr(value))
    raise ValueError(text) if real else TypeError(text)
