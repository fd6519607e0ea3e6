"""Opens regular files only, where somebody else may have put something else.

Nothing is followed and nothing blocks: a symbolic link, FIFO, device or directory in
place of a file is an ``OSError`` that says so, and so is a path that leaves the
directory. The check applies to what was opened, not to what had the name before.

What is written is flushed to disk, large files already while they grow.
"""

import errno
import functools
import logging
import operator
import os
import secrets
import stat
import threading
from concurrent.futures import Executor
from pathlib import Path

from resilient.errors import CheckpointReadError, printable

logger = logging.getLogger(__name__)

# Far above real use: anything larger is not ours.
JSON_BYTES = 64 << 20
SMALL_BYTES = 1 << 20
EVENTS_BYTES = 1 << 30

_INTERVAL = 0.004  # seconds between flushes; smaller files are done before the first
GROWTH = 8 << 20  # bytes worth a flush

# Errors that say nothing about the file, and what to do about them.
NO_DAMAGE = {
    errno.EACCES: "Allow this user to read there.",
    errno.EPERM: "Allow this user to read there.",
    errno.EMFILE: "Close files, or raise the limit on open ones (`ulimit -n`).",
    errno.ENFILE: "Close files of other processes: the machine has too many open.",
    errno.ENOMEM: "Free some memory.",
}

# Errors of a file system that lacks an ability, as opposed to one that fails.
UNABLE = frozenset(
    (
        *(errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL),
        *(errno.EPERM, errno.EXDEV, errno.EEXIST, errno.ENOLCK),
    )
)

WINDOWS = os.name == "nt"  # has only some of these flags, and cannot open directories


def flags(*names: str) -> int:
    """Flags of ``os.open``, as far as this system has them."""
    return functools.reduce(operator.or_, (getattr(os, name, 0) for name in names))


_ALWAYS = flags("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_BINARY")
_DIRECTORY = os.O_RDONLY | flags("O_DIRECTORY", "O_CLOEXEC")
_RELATIVE = os.open in os.supports_dir_fd  # Windows opens whole paths only


def require_readable(error: OSError) -> None:
    """Raise for an error that says nothing about the file.

    Raises:
        CheckpointReadError: Its number is in ``NO_DAMAGE``.
    """
    if error.errno in NO_DAMAGE:
        found = CheckpointReadError(
            "A checkpoint directory cannot be read right now. Nothing in it was "
            "changed.",
            received=f"{error.filename}: {error.strerror}",
            hint=NO_DAMAGE[error.errno],
        )
        found.errno = error.errno
        raise found from error


def is_inside(name: str) -> bool:
    """Whether a relative path, with slashes, stays inside its directory."""
    return "\0" not in name and not {"", ".", ".."}.intersection(name.split("/"))


def open_file(directory: Path, name: str, how: int = os.O_RDONLY) -> int:
    """Open a regular file inside a directory, and return its descriptor.

    Args:
        directory: The directory, which may itself be reached through links.
        name: Relative, with slashes: no link on this path is followed.
        how: Flags besides those that are always set. A new file gets the mode that the
            umask leaves.

    Raises:
        OSError: There is none, or something else has this name.
    """
    if not is_inside(name):
        raise OSError(errno.EINVAL, "the path leaves the directory", name)
    *parents, last = name.split("/")
    whole, how = os.path.join(directory, name), how | _ALWAYS
    try:
        if _RELATIVE:
            at = os.open(directory, _DIRECTORY)
            try:
                for parent in parents:
                    inner = os.open(parent, _DIRECTORY | _ALWAYS, dir_fd=at)
                    os.close(at)
                    at = inner
                descriptor = os.open(last, how, 0o666, dir_fd=at)
            finally:
                os.close(at)
        else:  # Windows: swapping a directory for a link meanwhile goes unnoticed
            _refuse_links(directory, name)
            descriptor = os.open(whole, how, 0o666)
    except OSError as error:
        _refuse_links(directory, name)  # with a better reason
        if error.errno == errno.ENXIO:  # a FIFO that nobody reads, a socket
            raise OSError(errno.EINVAL, "not a regular file", whole) from None
        error.filename = whole
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", whole)
    return descriptor


def _refuse_links(directory: Path, name: str) -> None:
    path = directory
    for part in name.split("/"):
        path = path / part
        if os.path.islink(path):
            what = "a symbolic link, which is not followed"
            raise OSError(errno.ELOOP, what, os.path.join(directory, name)) from None


def read_file(directory: Path, name: str, limit: int) -> bytes:
    """Read a small file inside a directory.

    Args:
        directory: As for ``open_file``.
        name: Likewise.
        limit: The most bytes that it may have.

    Raises:
        OSError: It cannot be opened, or is larger.
    """
    with open(open_file(directory, name), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            what = f"larger than the {limit:,} bytes that it may have"
            raise OSError(errno.EFBIG, what, name)
        return file.read(size)


def unfinished_name(name: str) -> str:
    """A fresh name for writing a file that will replace another."""
    return f"{name}.tmp-{secrets.token_hex(8)}"


def replace_file(path: Path, content: bytes) -> None:
    """Replace a small file atomically: a kill leaves the old or the new one.

    Raises:
        OSError: The file system failed; the file is as it was.
    """
    # Nobody can have put a link under a name that nobody knew.
    beside = path.with_name(unfinished_name(path.name))
    try:
        with open(beside, "xb") as file:
            file.write(content)
        sync(beside)
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    sync(path.parent)


def sync(*paths: str | os.PathLike[str]) -> None:
    """Wait until files' bytes, or directories' names, are on disk.

    Some file systems do not sync directories: the log says so once. Windows needs
    no sync of directories, and has none.
    """
    for path in paths:
        if WINDOWS and os.path.isdir(path):
            continue
        descriptor = os.open(path, os.O_RDWR if WINDOWS else os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            found = os.fstat(descriptor)
            if not (error.errno in UNABLE and stat.S_ISDIR(found.st_mode)):
                raise
            say_once(
                f"The file system of {os.fspath(path)} does not sync directories "
                f"({error.strerror}): a kill loses nothing there, but a power cut may "
                "undo the last saves.",
                of=found.st_dev,
            )
        finally:
            os.close(descriptor)


def sync_tree(directory: Path) -> None:
    """Sync a directory and everything in it."""
    for parent, _, names in os.walk(directory, topdown=False):
        sync(*(os.path.join(parent, name) for name in names), parent)


class Flush:
    """Flushes large files of a directory while they grow, until it is stopped.

    Writing copies memory into the system's cache, and ``fsync`` then waits for the
    disk: one after the other, though they use different resources. So little is left
    for the final ``fsync``, which still makes files durable.

    Args:
        directory: The directory, with its subdirectories.
        beside: Runs the flushes; None: there are none.
    """

    def __init__(self, directory: Path, beside: Executor | None) -> None:
        self._over, self._flushed = threading.Event(), dict[str, int]()
        self._running = None
        if beside is not None and not WINDOWS:  # flushes only files open for writing
            self._running = beside.submit(self._run, directory)

    def stop(self) -> None:
        """Flush nothing more. Whoever runs the flushes waits for the last one."""
        self._over.set()

    def finish(self) -> None:
        """Flush nothing more, and wait for the last one.

        Raises:
            OSError: A flush failed. Linux reports that once: a later ``fsync``
                succeeds.
        """
        self.stop()
        if self._running is not None:
            self._running.result()

    def _run(self, directory: Path) -> None:
        while not self._over.wait(_INTERVAL):
            for parent, _, names in os.walk(directory):
                for name in names:
                    self._flush_growth(os.path.join(parent, name))

    def _flush_growth(self, path: str) -> None:
        try:
            if os.path.getsize(path) - self._flushed.get(path, 0) < GROWTH:
                return
            descriptor = os.open(path, os.O_RDONLY)
        except OSError:
            return  # already gone, or the last fsync will tell
        try:
            self._flushed[path] = os.fstat(descriptor).st_size
            getattr(os, "fdatasync", os.fsync)(descriptor)  # macOS has no fdatasync
        finally:
            os.close(descriptor)


said: set[object] = set()  # of what


def say_once(text: str, *, of: object) -> None:
    """Log a warning, once per process."""
    if of not in said:
        said.add(of)
        logger.warning("%s", printable(text))
