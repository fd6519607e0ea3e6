"""Allows only one running process (or gang) per checkpoint directory.

The operating system holds the lock, so it vanishes with its owner, however that dies.
``flock`` rather than ``lockf``: a POSIX record lock is dropped when anything in the
process closes the file, say by copying the directory. Forked children (a data loader's
workers) inherit an ``flock``, so they close their copy at once.

What is locked is the file ``lock``, which names the owner. Each save checks that the
file is still there: who deletes it lets another run in.

Hosts that share a directory exclude each other if the file system propagates locks. If
it locks no files, a file in this machine's temporary directory is locked: that keeps
this machine's runs apart, and the log says once that it does no more.
"""

import errno
import hashlib
import json
import logging
import os
import socket
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from resilient.errors import CheckpointWriteError, DirectoryInUseError, printable
from resilient.forked import in_forked_child
from resilient.serialization.schema import SchemaError, from_json, parse
from resilient.storage import directories, files, layout
from resilient.storage.manifest import now

logger = logging.getLogger(__name__)

_OWNER_BYTES = 4096
_TRIES = 100  # tries to lock a file that others keep replacing


@dataclass(frozen=True)
class _Owner:
    """Who holds a lock, in words."""

    host: str
    pid: int
    started: str


_held: set["DirectoryLock"] = set()


class DirectoryLock:
    """The right to change a checkpoint directory, as a context manager.

    It also excludes a second lock in the same process.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory: Path = layout.local_directory(directory)
        self._descriptors: list[int] = []

    def acquire(self) -> None:
        """Take the lock without waiting; create the directory if necessary.

        Raises:
            DirectoryInUseError: If a running process has it.
            CheckpointWriteError: If this user may not write there.
        """
        layout.make_directory(self.directory)
        taken: list[int] = []
        try:
            file, locked = _locked_file(self.directory)
            taken.append(file)
            if not locked:
                taken += (beside := _locked_on_this_machine(self.directory))
                _say_what_is_apart(self.directory, apart=bool(beside))
            directories.check_abilities(self.directory)
        except BaseException as error:
            _close(taken)
            if not isinstance(error, OSError):
                raise
            raise CheckpointWriteError(
                f"The checkpoint directory cannot be locked: {error.strerror}.",
                received=self.directory / layout.LOCK,
                hint="Allow this user to write there, remove that path if it is not "
                "a regular file, or choose another checkpoint_dir.",
            ) from error
        self._descriptors = taken
        _held.add(self)

    def check(self) -> None:
        """Refuse to go on if somebody removed or replaced the locked file.

        Raises:
            DirectoryInUseError: Another run could have locked it since.
        """
        if not _is(self.directory / layout.LOCK, self._descriptors[0]):
            raise DirectoryInUseError(
                "The lock of this checkpoint directory was deleted or replaced during "
                "training, so another run could use it as well. Nothing was saved.",
                received=f"{self.directory / layout.LOCK}: {_owner(self.directory)}",
                hint="Leave that file alone: it releases itself when its process ends. "
                "Run the script again to continue from the last checkpoint.",
            )

    def release(self) -> None:
        """Release the lock; no effect if it is not held."""
        _held.discard(self)
        _close(self._descriptors)

    def __enter__(self) -> "DirectoryLock":
        self.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


def check(directory: Path) -> None:
    """Check that this process still has the lock of a directory, before a save.

    Raises:
        DirectoryInUseError: Another run could have locked it since.
    """
    for lock in list(_held):
        if lock.directory == directory:
            lock.check()


def _locked_file(directory: Path) -> tuple[int, bool]:
    """The descriptor of the file, with our name in it, and whether it is locked."""
    for _ in range(_TRIES):
        descriptor = files.open_file(directory, layout.LOCK, os.O_RDWR | os.O_CREAT)
        try:
            locks = _lock(descriptor, directory)
            if _is(directory / layout.LOCK, descriptor):
                _identify(descriptor)
                return descriptor, locks
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise OSError(errno.EBUSY, "something keeps replacing the file", layout.LOCK)


def _is(path: Path, descriptor: int) -> bool:
    """Whether a path now names the open file."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _lock(descriptor: int, directory: Path) -> bool:
    """Whether it is locked now; False on a file system without locks."""
    try:
        take(descriptor)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise _in_use(directory) from None
        if error.errno not in files.UNABLE:
            raise
        return False
    return True


def _locked_on_this_machine(directory: Path) -> list[int]:
    """The descriptor of a file that is locked instead of the directory, if any."""
    place = Path(tempfile.gettempdir())
    name = hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()
    name = f"resilient-{name[:32]}.lock"
    taken: list[int] = []
    try:
        try:  # another user's may be opened, but not with O_CREAT
            taken.append(files.open_file(place, name))
        except FileNotFoundError:
            taken.append(files.open_file(place, name, os.O_RDWR | os.O_CREAT))
        if _lock(taken[0], directory):
            return taken
    except DirectoryInUseError:
        _close(taken)
        raise
    except OSError:
        pass
    _close(taken)
    return []


def _say_what_is_apart(directory: Path, *, apart: bool) -> None:
    text = (
        "Runs on this machine still exclude each other: make sure that no other "
        "machine uses it at the same time."
        if apart
        else "Make sure that only one run uses it at a time."
    )
    files.say_once(
        f"The file system of {directory} does not lock files. {text}",
        of=("locks", directory),
    )


def _in_use(directory: Path) -> DirectoryInUseError:
    problem = "Another run is using this checkpoint directory."
    hint = (
        "Wait for that run, or end it, or choose another checkpoint_dir: each run "
        "needs its own."
    )
    if any(_same(lock.directory, directory) for lock in list(_held)):
        problem = "This process is already using this checkpoint directory."
        hint = (
            "A fit or loop inside another one, or in another thread, needs its own "
            "checkpoint_dir."
        )
    return DirectoryInUseError(
        problem, received=f"{directory}, held by {_owner(directory)}", hint=hint
    )


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def _identify(descriptor: int) -> None:
    owner = asdict(_Owner(socket.gethostname(), os.getpid(), now()))
    # A full disk must not keep a run from resuming: the name is only for people.
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, json.dumps(owner).encode() + b"\n")
    except OSError as error:
        logger.warning("Could not write the owner into the lock: %s", error)


def _owner(directory: Path) -> str:
    try:
        raw = files.read_file(directory, layout.LOCK, _OWNER_BYTES)
        owner = from_json(_Owner, parse(raw))
    except (OSError, SchemaError):
        return "an unknown process"
    who = f"process {owner.pid} on {owner.host} since {owner.started}"
    return printable(who[:300])


def _close(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())


@in_forked_child
def _close_in_child() -> None:
    for lock in list(_held):
        lock.release()


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
