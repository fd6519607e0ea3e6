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

import contextlib
import errno
import hashlib
import logging
import os
import socket
import tempfile
from contextlib import ExitStack
from pathlib import Path

from resilient.errors import DirectoryInUseError, printable
from resilient.storage import directories, files, layout
from resilient.storage.manifest import now
from resilient.storage.refusals import unwritable

try:
    import fcntl
except ImportError:  # Windows
    import portalocker

logger = logging.getLogger(__name__)

_OWNER_BYTES = 4096


class DirectoryLock:
    """The right to change a checkpoint directory, as a context manager.

    It also excludes a second lock in the same process.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory: Path = layout.local_directory(directory)
        self._taken, self._file = ExitStack(), -1

    def acquire(self) -> None:
        """Take the lock without waiting; create the directory if necessary.

        Raises:
            DirectoryInUseError: If a running process has it.
            CheckpointWriteError: If this user may not write there.
            NotSupportedError: If the file system lacks what a checkpoint requires.
        """
        layout.make_directory(self.directory)
        with (
            ExitStack() as taken,
            unwritable(
                "The checkpoint directory cannot be locked",
                received=self.directory / layout.LOCK,
                hint="Allow this user to write there, remove that path if it is not "
                "a regular file, or choose another checkpoint_dir.",
            ),
        ):
            file = _locked_file(self.directory, taken)
            directories.check_abilities(self.directory)
            self._file, self._taken = file, taken.pop_all()
            _held.add(self)

    def is_intact(self) -> bool:
        """Whether the file that is locked still has its name."""
        try:
            found = (self.directory / layout.LOCK).lstat()
        except FileNotFoundError:
            return False
        return os.path.samestat(found, os.fstat(self._file))

    def release(self) -> None:
        """Release the lock; no effect if it is not held."""
        _held.discard(self)
        self._taken.close()

    def __enter__(self) -> "DirectoryLock":
        self.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


_held: set[DirectoryLock] = set()


def _release_in_child() -> None:
    for lock in list(_held):
        lock.release()


if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=_release_in_child)


def check(directory: Path) -> None:
    """Check that this process still has the lock of a directory, before a save.

    Raises:
        DirectoryInUseError: Another run could have locked it since.
    """
    for lock in list(_held):
        if lock.directory == directory and not lock.is_intact():
            raise DirectoryInUseError(
                "The lock of this checkpoint directory was deleted or replaced during "
                "training, so another run could use it as well. Nothing was saved.",
                received=f"{directory / layout.LOCK}: {_owner(directory)}",
                hint="Leave that file alone: it releases itself when its process ends. "
                "Run the script again to continue from the last checkpoint.",
            )


def _locked_file(directory: Path, taken: ExitStack) -> int:
    """The descriptor of the locked file, with our name in it."""
    file = files.open_file(directory, layout.LOCK, os.O_RDWR | os.O_CREAT)
    taken.callback(os.close, file)
    if not _locks(file, directory):
        text = (
            "Runs on this machine still exclude each other: make sure that no other "
            "machine uses it at the same time."
            if _locks_on_this_machine(directory, taken)
            else "Make sure that only one run uses it at a time."
        )
        files.say_once(
            f"The file system of {directory} does not lock files. {text}",
            of=("locks", directory),
        )
    owner = f"process {os.getpid()} on {socket.gethostname()} since {now()}\n"
    # A full disk must not keep a run from resuming: the name is only for people.
    try:
        os.ftruncate(file, 0)
        os.write(file, owner.encode())
    except OSError as error:
        logger.warning("Could not write the owner into the lock: %s", error)
    return file


def _locks(descriptor: int, directory: Path) -> bool:
    """Whether it is locked now; False on a file system without locks.

    Raises:
        DirectoryInUseError: Somebody else has locked it.
    """
    try:
        _lock(descriptor)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise _in_use(directory) from None
        if error.errno not in files.UNABLE:
            raise
        return False
    return True


def _locks_on_this_machine(directory: Path, taken: ExitStack) -> bool:
    """Whether a file that is locked instead of the directory's is locked now."""
    place = Path(tempfile.gettempdir())
    digest = hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()
    name = f"resilient-{digest[:32]}.lock"
    with contextlib.suppress(OSError):
        try:  # another user's may be opened, but not with O_CREAT
            file = files.open_file(place, name)
        except FileNotFoundError:
            file = files.open_file(place, name, os.O_RDWR | os.O_CREAT)
        taken.callback(os.close, file)
        return _locks(file, directory)
    return False


def _lock(descriptor: int) -> None:
    """Lock it without waiting.

    Raises:
        BlockingIOError: Somebody else has it; some file systems raise PermissionError.
        OSError: It cannot be locked.
    """
    if "fcntl" in globals():
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    # There nobody else can read a locked file: the owner stays unknown.
    how = portalocker.LockFlags.EXCLUSIVE | portalocker.LockFlags.NON_BLOCKING
    try:
        portalocker.lock(descriptor, how)
    except portalocker.AlreadyLocked:
        number = errno.EWOULDBLOCK
        raise BlockingIOError(number, os.strerror(number)) from None
    except portalocker.LockException as error:
        raise OSError(errno.EIO, str(error)) from error


def _in_use(directory: Path) -> DirectoryInUseError:
    problem = "Another run is using this checkpoint directory."
    hint = (
        "Wait for that run, or end it, or choose another checkpoint_dir: each run "
        "needs its own."
    )
    if directory.resolve() in {lock.directory.resolve() for lock in list(_held)}:
        problem = "This process is already using this checkpoint directory."
        hint = (
            "A fit or loop inside another one, or in another thread, needs its own "
            "checkpoint_dir."
        )
    return DirectoryInUseError(
        problem, received=f"{directory}, held by {_owner(directory)}", hint=hint
    )


def _owner(directory: Path) -> str:
    try:
        owner = files.read_file(directory, layout.LOCK, _OWNER_BYTES).decode()
    except (OSError, ValueError):
        owner = ""
    named = owner.startswith("process ")
    return printable(owner.strip()[:300]) if named else "an unknown process"
