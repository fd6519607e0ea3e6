"""The errors of this library, all one family.

A message says what is wrong, then what was ``Received:``, then what to do.
"""

import sys
import warnings
from collections.abc import Sequence


class ResilientError(Exception):
    """Base class of every error raised by keras-resilient."""


class CheckpointNotFoundError(ResilientError):
    """The checkpoint that was asked for does not exist."""


class CorruptCheckpointError(ResilientError):
    """Checkpoints exist, but none of them passes verification."""


class CheckpointMismatchError(ResilientError):
    """A checkpoint belongs to another model, data, callbacks or settings."""


class CheckpointWriteError(ResilientError):
    """A checkpoint could not be written; the ones before it are intact."""


class DirectoryInUseError(ResilientError):
    """Another living run holds the checkpoint directory."""


class DataNotResumableError(ResilientError):
    """The training data has no position that training could get back to."""


class DataWorkerError(ResilientError):
    """A process that makes batches died.

    On TensorFlow it is the text of an error of TensorFlow's own.
    """


class NotSupportedError(ResilientError):
    """Something that cannot be made exact (yet), and is refused."""


class BackendNotAvailableError(ResilientError, ImportError):
    """The Keras backend, or a library its adapter needs, is not installed."""


class NotExactWarning(UserWarning):
    """Names, once, what a resumed run will not reproduce bit for bit, and why."""


def describe(what: str, received: object, todo: str) -> str:
    """Compose an error message in the house's three-part shape.

    Args:
        what: What is wrong, a whole sentence.
        received: What came instead.
        todo: What the reader can do about it.
    """
    return f"{what}\nReceived: {received}\n{todo}"


def warn_not_exact(what: str, names: Sequence[str]) -> None:
    """Say what is not exact, and name each thing, in one warning."""
    warnings.warn(
        f"Not bit-exact: {what}:\n  " + "\n  ".join(names),
        NotExactWarning,
        stacklevel=_user_level(),
    )


class WarnOnce:
    """Warns like ``warn_not_exact``, of each thing once."""

    def __init__(self) -> None:
        self._said: set[tuple[str, str]] = set()

    def __call__(self, what: str, names: Sequence[str]) -> None:
        new = [name for name in names if (what, name) not in self._said]
        self._said.update((what, name) for name in new)
        if new:
            warn_not_exact(what, new)


def _user_level() -> int:
    """Stack level of the first caller outside this package and Keras."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in ("resilient", "keras"):
            break
        frame, level = frame.f_back, level + 1
    return level
