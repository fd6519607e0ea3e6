"""Flushes files to disk while they are still being written.

Writing copies memory into the system's cache, and ``fsync`` then waits for the disk:
one after the other, though they use different resources. Here large files are flushed
while they grow, so little is left for the final ``fsync``, which still makes them
durable.
"""

import contextlib
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, wait
from pathlib import Path

from resilient.storage.files import WINDOWS

_INTERVAL = 0.004  # seconds; smaller files are done before the first look
GROWTH = 8 << 20  # bytes worth a flush


@contextlib.contextmanager
def flushed_meanwhile(directory: Path, beside: Executor | None) -> Iterator[None]:
    """Flush growing files in ``directory`` while the body writes there.

    Args:
        directory: The directory, with its subdirectories.
        beside: Runs the flushes; None: there are none.

    Raises:
        OSError: A flush failed. Linux reports that once: a later ``fsync`` succeeds.
    """
    if beside is None or WINDOWS:  # flushes only files open for writing
        yield
        return
    over, flushed = threading.Event(), dict[str, int]()

    def flush() -> None:
        while not over.wait(_INTERVAL):
            for path in _files(directory):
                _flush_growth(path, flushed)

    flushing = beside.submit(flush)
    try:
        yield
    finally:
        over.set()
        wait([flushing])
    flushing.result()


def _files(directory: Path) -> list[str]:
    walk = os.walk(directory)
    return [os.path.join(parent, name) for parent, _, names in walk for name in names]


def _flush_growth(path: str, flushed: dict[str, int]) -> None:
    try:
        if os.path.getsize(path) - flushed.get(path, 0) < GROWTH:
            return
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return  # already gone, or the last fsync will tell
    try:
        flushed[path] = os.fstat(descriptor).st_size
        getattr(os, "fdatasync", os.fsync)(descriptor)  # macOS has no fdatasync
    finally:
        os.close(descriptor)
