"""Tensors in the files of a library: read later, read elsewhere, or not as expected."""

import contextlib
import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from resilient.errors import (
    ANOTHER_STEP,
    CorruptCheckpointError,
    ResilientError,
    printable,
)

_LONGEST = 500  # characters of a message
# Nothing has the name of a file, or a library reads past its end.
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL)


@dataclass(frozen=True)
class StoredTensor:
    """A tensor that is still on the disk.

    Attributes:
        shape: Of all of it.
        dtype: Its NumPy dtype.
        load: Reads the elements in an index, which has a slice without a step for each
            dimension.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    load: Callable[[tuple[slice, ...]], np.ndarray]

    def __getitem__(self, index: tuple[slice, ...]) -> np.ndarray:
        """The elements in an index, read-only, read again each time."""
        array = self.load(index)
        array.flags.writeable = False
        return array

    def __array__(
        self, dtype: np.dtype[Any] | None = None, copy: bool | None = None
    ) -> np.ndarray:
        """All of it, read again each time."""
        whole = self[tuple(slice(0, size) for size in self.shape)]
        return whole if dtype is None else whole.astype(dtype, copy=False)


def corrupt(problem: str) -> CorruptCheckpointError:
    """The error for files that are not what was written there."""
    return CorruptCheckpointError(
        "The checkpoint's tensors cannot be read: their files do not have the "
        "expected format.",
        received=printable(problem[:_LONGEST]),  # one line: it may quote the files
        hint=ANOTHER_STEP,
    )


@contextlib.contextmanager
def decoding(what: str) -> Iterator[None]:
    """Turn whatever a library raises about the content of files into that error.

    Others pass: errors of the disk, which say nothing of the content, and that memory
    is short.
    """
    try:
        yield
    except (ResilientError, MemoryError):
        raise
    except OSError as error:
        if error.errno not in _NOT_THERE:
            raise
        raise corrupt(f"{what}: {error}") from error
    except Exception as error:  # of the library's own classes, or any of Python's
        raise corrupt(f"{what}: {type(error).__name__}: {error}") from error
