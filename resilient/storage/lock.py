"""One living run per checkpoint directory.

The operating system holds the lock, so it dies with its owner, however that dies.
``flock`` rather than ``lockf``: a POSIX record lock is dropped when anything in the
process closes the file, say by copying the directory. Forked children (a data loader's
workers) inherit an ``flock``, so they close their copy at once.

Hosts that share a directory exclude each other if the file system passes locks on. On
one without locks, the log has a warning.
"""

import errno
import fcntl
import json
import logging
import os
import socket
from pathlib import Path
from typing import Any

from resilient.errors import CheckpointWriteError, DirectoryInUseError
from resilient.storage import layout
from resilient.storage.quarantine import now

logger = logging.getLogger(__name__)

_held: set["DirectoryLock"] = set()


class DirectoryLock:
    """The right to change a checkpoint directory; a context manager.

    It excludes a second lock in the same process, too.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory: Path = layout.local_directory(directory)
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock without waiting; creates the directory if need be.

        Raises:
            DirectoryInUseError: If a living process has it.
            CheckpointWriteError: If this user may not write there.
        """
        layout.make_directory(self.directory)
        path = self.directory / layout.LOCK
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise CheckpointWriteError(
                f"The checkpoint directory is not writable: {error.strerror}.",
                received=error,
                hint="Allow this user to write there, or choose another "
                "checkpoint_dir.",
            ) from error
        try:
            _lock(descriptor, self.directory)
            _identify(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        _held.add(self)

    def release(self) -> None:
        """Give the lock back; without effect if it is not held."""
        _held.discard(self)
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> "DirectoryLock":
        self.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


def _lock(descriptor: int, directory: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise DirectoryInUseError(
                "Another run is using this checkpoint directory.",
                received=f"{directory}, held by {_owner(descriptor)}",
                hint="Wait for that run or end it, or choose another checkpoint_dir: "
                "each run needs its own.",
            ) from None
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP):
            raise
        logger.warning(
            "The file system of %s does not support locks: make sure that only one "
            "run uses it at a time.",
            directory,
        )


def _identify(descriptor: int) -> None:
    owner = {"host": socket.gethostname(), "pid": os.getpid(), "started": now()}
    # A full disk must not keep a run from resuming: the identity is for people.
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(owner).encode() + b"\n", 0)
    except OSError as error:
        logger.warning("The lock does not say who holds it: %s", error)


def _owner(descriptor: int) -> str:
    try:
        owner: dict[str, Any] = json.loads(os.pread(descriptor, 4096, 0))
        return "process {pid} on {host} since {started}".format(**owner)
    except (OSError, ValueError, KeyError, TypeError):
        return "a process that did not leave its name"


def _close_in_child() -> None:
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_close_in_child)
