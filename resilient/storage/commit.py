"""Turns the bytes in a staging directory into a checkpoint, or nothing.

    write; fsync each file; manifest; fsync; fsync directories; rename; fsync parent

The rename is the commit: a kill before it leaves a staging directory that no reader
looks at; after it the checkpoint is complete. An earlier checkpoint of the same step is
renamed first; ``recovery`` renames it back if a kill came in between.

Every failure of the file system becomes a ``CheckpointWriteError``.
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path, PurePosixPath

from resilient.errors import CheckpointWriteError, NotSupportedError, ResilientError
from resilient.progress import Progress
from resilient.storage import layout, lock
from resilient.storage.checkpoint import Checkpoint
from resilient.storage.directories import delete_checkpoints, move
from resilient.storage.files import WINDOWS, Flush, sync
from resilient.storage.manifest import FileRecord, Manifest, ManifestError, records
from resilient.storage.refusals import DISK_ERRORS, disk_error


class Staging:
    """A new directory to fill, and then to publish as a checkpoint.

    Args:
        path: The directory, empty.
        progress: Where the run is.
        beside: One thread, which flushes files while others are written.

    Attributes:
        path: The directory.
        progress: Where the run is.
        flush: What flushes large files while they grow.
    """

    def __init__(self, path: Path, progress: Progress, beside: Executor | None) -> None:
        self.path, self.progress = path, progress
        self.flush = Flush(path, beside)
        self._beside, self._identity = beside, os.stat(path)

    def seal(
        self, written: Collection[str], linked: Mapping[str, FileRecord] | None = None
    ) -> dict[str, FileRecord]:
        """Record every file, and wait until it is on disk.

        Args:
            written: Files that have to be there; more may be.
            linked: Files that are on disk already, and were read to be recorded.

        Returns:
            The files, by path relative to the directory.

        Raises:
            OSError: The file system failed, or something deleted a file or replaced
                the directory: TensorFlow creates missing ones.
        """
        self.flush.finish()
        found = set(_names(os.fspath(self.path)))
        same = os.path.samestat(self._identity, os.stat(self.path))
        gone = [name for name in written if name not in found]
        if gone or not same:
            path = os.path.join(self.path, *gone[:1])
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        names = sorted(found - (linked or {}).keys())
        paths = [os.path.join(self.path, name) for name in names]
        if self._beside is None:
            sync(*paths)
            return {**(linked or {}), **records(self.path, names)}
        syncing = self._beside.submit(sync, *paths)  # while they are read
        recorded = records(self.path, names)
        syncing.result()
        return {**(linked or {}), **recorded}


@contextlib.contextmanager
def staging(
    path: Path, progress: Progress, *, small: bool = False
) -> Iterator[Staging]:
    """Inside, a directory is filled, sealed and published; afterwards it is gone.

    Args:
        path: A name for it in the existing checkpoint directory.
        progress: Where the run is.
        small: As for ``part``.

    Raises:
        CheckpointWriteError: If the file system fails; the others are intact.
        DirectoryInUseError: If this process lost the lock of the directory.
    """
    try:
        with part(path, progress, small=small) as filled:
            yield filled
    finally:
        # After the rename, nothing has this name.
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def part(path: Path, progress: Progress, *, small: bool = False) -> Iterator[Staging]:
    """Inside, a new directory is filled and sealed; it stays.

    Args:
        path: The directory.
        progress: Where the run is.
        small: Whether it is expected to be so small that waiting for the disk beside
            the writing and the reading gains less than another thread costs.

    Raises:
        CheckpointWriteError: If the file system fails.
    """
    with _explained(path, progress), contextlib.ExitStack() as opened:
        lock.check(path.parent)
        os.mkdir(path)
        # At most one thread for all files: each time a thread starts or wakes up,
        # training may lose the interpreter for a moment.
        beside = None
        if not small:
            beside = ThreadPoolExecutor(1, thread_name_prefix="resilient-disk")
            opened.enter_context(beside)
        if not WINDOWS:
            # While it is open, no other directory can get the same inode.
            opened.callback(os.close, os.open(path, os.O_RDONLY))
        filled = Staging(path, progress, beside)
        opened.callback(filled.flush.stop)
        yield filled


def publish(staging: Staging, manifest: Manifest) -> Checkpoint:
    """Make a checkpoint of a sealed directory.

    Raises:
        NotSupportedError: Its manifest could not be read back.
        OSError: The file system failed.
    """
    raw, path = manifest.to_bytes(), staging.path / layout.MANIFEST
    try:
        Manifest.from_bytes(raw)
    except ManifestError as error:
        raise NotSupportedError(
            "The manifest of this checkpoint could not be read back, so nothing was "
            "saved.",
            received=error,
            hint="Use fewer metrics and files, with shorter names.",
        ) from None
    with open(path, "wb") as file:
        file.write(raw)
    # An empty directory is none of the checkpoint's.
    names = map(PurePosixPath, [layout.MANIFEST, *manifest.files])
    inner = {parent for name in names for parent in name.parents}
    sync(path, *(staging.path / each for each in sorted(inner, reverse=True)))
    committed = staging.path.with_name(layout.committed_name(manifest.progress.step))
    _rename(staging.path, committed, manifest.progress.step)
    return Checkpoint.of(manifest, committed)


@contextlib.contextmanager
def _explained(staging: Path, progress: Progress) -> Iterator[None]:
    """Turn every failure of the file system into a CheckpointWriteError.

    However the writing library reports it. Other errors pass through unchanged.
    """
    try:
        yield
    except ResilientError:  # explains itself
        raise
    except Exception as error:
        number = disk_error(error)
        if number is None:
            raise
        path = getattr(error, "filename", None) or staging
        raise CheckpointWriteError(
            f"The checkpoint at {progress} cannot be written: {os.strerror(number)} "
            f"({errno.errorcode.get(number, number)}). Earlier checkpoints are intact.",
            received=f"{path}: {type(error).__name__}: {error}",
            hint=DISK_ERRORS.get(number, "Check the file system of this directory."),
        ) from error


def _names(directory: str, inside: str = "") -> Iterator[str]:
    """Every file, relative to the directory and with slashes.

    Raises:
        OSError: Something is neither a file nor a directory.
    """
    with os.scandir(os.path.join(directory, inside)) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.is_dir(follow_symlinks=False):
                yield from _names(directory, f"{inside}{entry.name}/")
            elif entry.is_file(follow_symlinks=False):
                yield inside + entry.name
            else:
                what = "A checkpoint may contain only regular files"
                raise OSError(errno.EINVAL, what, entry.path)


def _rename(staging: Path, committed: Path, step: int) -> None:
    """Give the directory its own name, and delete the former one of that name."""
    former = None
    if os.path.lexists(committed):
        former = committed.with_name(layout.replaced_name(step))
        move(committed, former)
    try:
        os.rename(staging, committed)
    except BaseException:
        if former is not None:
            move(former, committed)
        raise
    sync(committed.parent)
    if former is not None:
        # `recovery` deletes the rest: the commit has succeeded.
        with contextlib.suppress(OSError):
            delete_checkpoints([former])
