"""What the machine itself takes to copy, write and read the bytes of a state."""

import ctypes
import gc
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

_MOST = 2**30  # one call of write takes no more than 2 GiB on Linux


def timed(do: Callable[[], object]) -> float:
    """Seconds."""
    begun = time.perf_counter()
    do()
    return time.perf_counter() - begun


def trim() -> None:
    """Give free memory back, so that new memory is new to whoever asks for it."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


class Limits:
    """The same bytes without any library.

    Args:
        arrays: The state, on the host.
        directory: Where to write.
    """

    def __init__(self, arrays: Sequence[np.ndarray], directory: Path) -> None:
        self._arrays = [np.ascontiguousarray(array).reshape(-1) for array in arrays]
        self._warm = [array.copy() for array in self._arrays]
        self._path = directory / "raw"
        self.nbytes = sum(array.nbytes for array in self._arrays)
        self.write()

    def memcpy(self) -> float:
        """Copy into buffers that were written to before, on one thread.

        Once, where a save would come: several in a row would find a small state in the
        processor's caches, in which a step of training leaves little of it.
        """
        return timed(self._copy)

    def write(self) -> float:
        """Write a new file, each array with one call, and flush it to disk."""
        self._path.unlink(missing_ok=True)
        return timed(self._write)

    def read(self) -> float:
        """Read the file, which is in the page cache, into new memory."""
        trim()
        return timed(self._read)

    def read_reused(self) -> float:
        """The same into buffers that were written to before."""
        return timed(self._read_reused)

    def _copy(self) -> None:
        for array, buffer in zip(self._arrays, self._warm, strict=True):
            np.copyto(buffer, array)

    def _write(self) -> None:
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            for array in self._arrays:
                left = memoryview(array.view(np.uint8))
                while left:
                    left = left[os.write(file, left[:_MOST]) :]
            os.fsync(file)
        finally:
            os.close(file)

    def _read(self) -> list[np.ndarray]:
        with open(self._path, "rb", buffering=0) as file:
            return [np.fromfile(file, a.dtype, a.size) for a in self._arrays]

    def _read_reused(self) -> None:
        with open(self._path, "rb", buffering=0) as file:
            for buffer in self._warm:
                left = memoryview(buffer.view(np.uint8))
                while left:
                    left = left[file.readinto(left[:_MOST]) :]
