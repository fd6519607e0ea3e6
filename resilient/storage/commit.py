"""Turns the bytes in a staging directory into a checkpoint, or nothing.

    write; fsync each file; manifest; fsync; fsync directories; rename; fsync parent

The rename is the commit: a kill before it leaves a staging directory that no reader
looks at; after it the checkpoint is complete. An earlier checkpoint of the same step is
renamed first; ``recovery`` renames it back if a kill came in between. Where directories
cannot be renamed, the manifest is the commit, see ``directories``.

Every failure of the file system becomes a ``CheckpointWriteError``.
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

from resilient.errors import NotSupportedError
from resilient.progress import Progress
from resilient.storage import layout, lock
from resilient.storage.checkpoint import Checkpoint
from resilient.storage.directories import delete_checkpoints, move, written_in_place
from resilient.storage.file_record import FileRecord, record
from resilient.storage.file_system import renames_directories
from resilient.storage.files import JSON_BYTES, WINDOWS, open_file, sync
from resilient.storage.flush import flushed_meanwhile
from resilient.storage.manifest import Manifest, ManifestError
from resilient.storage.write_failures import explained

# Fills a directory, and may return what it linked there.
Write = Callable[[str], Mapping[str, FileRecord] | None]


def commit(
    staging: Path,
    progress: Progress,
    write: Write,
    manifest: Callable[[Path, dict[str, FileRecord]], Manifest],
    *,
    small: bool = False,
) -> Checkpoint:
    """Make a checkpoint out of what ``write`` puts into a directory.

    Args:
        staging: A directory to create in the existing checkpoint directory.
        progress: Where the run is.
        write: As for ``stage``.
        manifest: Makes the manifest, from where which files were written.
        small: As for ``stage``.

    Raises:
        CheckpointWriteError: If the file system fails; the others are intact.
    """
    with explained(staging, progress):
        lock.put_back(staging.parent)
        try:
            with _published(staging, progress.step) as (place, committed):
                files = stage(place, progress, write, small=small)
                sealed = manifest(place, files)
                _finish(place, sealed)
            return Checkpoint.of(sealed, committed)
        finally:
            # After the rename, nothing is left under this name.
            shutil.rmtree(staging, ignore_errors=True)


def stage(
    staging: Path, progress: Progress, write: Write, *, small: bool = False
) -> dict[str, FileRecord]:
    """Fill a new directory, and wait until its files are on disk.

    Args:
        staging: The directory.
        progress: Where the run is.
        write: Fills it. May return files that it linked there: on disk already, and
            read to be recorded.
        small: Whether it is expected to be so small that waiting for the disk beside
            the writing and the reading gains less than another thread costs.

    Returns:
        The files, by path relative to the directory.

    Raises:
        CheckpointWriteError: If the file system fails.
    """
    with explained(staging, progress):
        os.mkdir(staging)
        # At most one thread for all files: each time a thread starts or wakes up,
        # training may lose the interpreter for a moment.
        with (
            contextlib.nullcontext()
            if small
            else ThreadPoolExecutor(1, thread_name_prefix="resilient-disk")
        ) as beside:
            linked = _write_into(staging, write, beside)
            return _seal(staging, linked, beside)


def _write_into(
    staging: Path, write: Write, beside: Executor | None
) -> Mapping[str, FileRecord]:
    """Let ``write`` fill the directory, and check that it is still the same one.

    TensorFlow creates missing directories: if something deletes the staging directory,
    the new one lacks earlier files.
    """
    # While it is open, no other directory can get the same inode.
    descriptor = None if WINDOWS else os.open(staging, os.O_RDONLY)
    before = os.stat(staging)
    try:
        with flushed_meanwhile(staging, beside):
            linked = write(os.fspath(staging))
        if not os.path.samestat(before, os.stat(staging)):
            raise FileNotFoundError(
                errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(staging)
            )
        return linked or {}
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _seal(
    staging: Path, linked: Mapping[str, FileRecord], beside: Executor | None
) -> dict[str, FileRecord]:
    """Record every file, and wait until it is on disk.

    Args:
        staging: Their directory, with everything that ``write`` wrote.
        linked: What of it is on disk, and was read to be recorded.
        beside: One thread, which has flushed them meanwhile and is done by now; it
            waits while they are read.
    """
    names = [n for n in _names(os.fspath(staging)) if n not in linked]
    known = dict(linked)
    if beside is None:
        return known | {name: _record(staging, name, wait=True) for name in names}
    syncing = beside.submit(_sync, [os.path.join(staging, name) for name in names])
    known |= {name: _record(staging, name) for name in names}
    syncing.result()
    return known


def _record(staging: Path, name: str, *, wait: bool = False) -> FileRecord:
    """The record of a file; ``wait``: until it is on disk."""
    how = os.O_RDWR if wait and WINDOWS else os.O_RDONLY
    with open(open_file(staging, name, how), "rb", buffering=0) as file:
        if wait:
            os.fsync(file.fileno())
        return record(file, os.fstat(file.fileno()).st_size)


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


def _sync(paths: Iterable[str]) -> None:
    for path in paths:
        sync(path)


def _finish(staging: Path, manifest: Manifest) -> None:
    """Write the manifest, and wait until it and every name are on disk."""
    raw = manifest.to_bytes()
    _require_readable(raw)
    with open(staging / layout.MANIFEST, "wb") as file:
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())
    # An empty directory is none of the checkpoint's.
    inner = {parent for name in manifest.files for parent in _parents(name)}
    _sync(os.path.join(staging, each) for each in sorted(inner, reverse=True))
    sync(staging)


def _parents(name: str) -> Iterator[str]:
    """The directories of a file that are inside the checkpoint."""
    while name := name.rpartition("/")[0]:
        yield name


def _require_readable(manifest: bytes) -> None:
    why = f"{len(manifest):,} bytes" if len(manifest) > JSON_BYTES else None
    try:
        Manifest.from_bytes(manifest)
    except ManifestError as error:
        why = str(error)
    if why is not None:
        raise NotSupportedError(
            "The manifest of this checkpoint could not be read back, so nothing was "
            "saved.",
            received=why,
            hint="Use fewer metrics and files, with shorter names.",
        )


@contextlib.contextmanager
def _published(staging: Path, step: int) -> Iterator[tuple[Path, Path]]:
    """Where to write a checkpoint, which is committed there afterwards."""
    directory, former = staging.parent, None
    committed = directory / layout.committed_name(step)
    if not renames_directories(directory):
        with written_in_place(committed):
            yield committed, committed
        return
    yield staging, committed
    if os.path.lexists(committed):
        former = directory / layout.replaced_name(step)
        move(committed, former)
    try:
        os.rename(staging, committed)
    except BaseException:
        if former is not None:
            move(former, committed)
        raise
    sync(directory)
    if former is not None:
        # `recovery` deletes the rest: the commit has succeeded.
        with contextlib.suppress(OSError):
            delete_checkpoints([former])
