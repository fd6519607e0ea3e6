"""Locks an open file until it is closed: by ``flock``, on Windows by portalocker."""

import errno
import os

try:
    import fcntl
except ImportError:  # Windows
    import portalocker


def take(descriptor: int) -> None:
    """Lock it without waiting.

    Raises:
        BlockingIOError: Somebody else has it; some file systems raise PermissionError.
        OSError: It cannot be locked.
    """
    _take(descriptor)


def _by_flock(descriptor: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _by_portalocker(descriptor: int) -> None:
    """There nobody else can read a locked file: the owner stays unknown."""
    how = portalocker.LockFlags.EXCLUSIVE | portalocker.LockFlags.NON_BLOCKING
    try:
        portalocker.lock(descriptor, how)
    except portalocker.AlreadyLocked:
        number = errno.EWOULDBLOCK
        raise BlockingIOError(number, os.strerror(number)) from None
    except portalocker.LockException as error:
        raise OSError(errno.EIO, str(error)) from error


_take = _by_flock if "fcntl" in globals() else _by_portalocker
