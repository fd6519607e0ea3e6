"""Sends files to the disk while they are still being written.

Writing copies memory into the system's cache, and ``fsync`` then waits for the disk:
one after the other, though neither needs what the other one uses. Here large files are
flushed while they grow, so that little is left for the end. It is no substitute for the
``fsync`` at the end, which makes them durable.
"""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

_INTERVAL = 0.004  # seconds; smaller files are through before the first look
_GROWTH = 8 << 20  # bytes that are worth a flush of their own


@contextlib.contextmanager
def flushed_meanwhile(directory: Path) -> Iterator[None]:
    """Flush what grows in ``directory`` while the body writes there.

    Raises:
        OSError: A flush failed. Linux reports that once: the last ``fsync`` would
            succeed.
    """
    over, errors = threading.Event(), list[OSError]()

    def flush() -> None:
        flushed: dict[str, int] = {}
        while not over.wait(_INTERVAL) and not errors:
            for path in _files(directory):
                with contextlib.suppress(FileNotFoundError):  # something temporary
                    _flush_growth(path, flushed, errors)

    thread = threading.Thread(target=flush, name="resilient-flush", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    for error in errors:
        raise error


def _files(directory: Path) -> list[str]:
    walk = os.walk(directory)
    return [os.path.join(parent, name) for parent, _, names in walk for name in names]


def _flush_growth(path: str, flushed: dict[str, int], errors: list[OSError]) -> None:
    if os.path.getsize(path) - flushed.get(path, 0) < _GROWTH:
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        flushed[path] = os.fstat(descriptor).st_size
        os.fdatasync(descriptor)
    except OSError as error:
        errors.append(error)
    finally:
        os.close(descriptor)
