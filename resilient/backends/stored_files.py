"""Opens the files of a checkpoint, whose every byte may come from somebody else.

Only regular files are opened, and if a manifest lists files, only those. Their content
is data: anything impossible is a ``CorruptCheckpointError``.
"""

import contextlib
import errno
import functools
import mmap
import operator
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from io import RawIOBase
from typing import NamedTuple

import xxhash

from resilient.errors import (
    ANOTHER_STEP,
    CorruptCheckpointError,
    ResilientError,
    printable,
)

# What stands in the place of a file, or that there is none: not the disk's fault.
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.EISDIR)
_FLAGS = os.O_RDONLY | functools.reduce(
    operator.or_,
    # Windows has the last one only.
    (
        getattr(os, name, 0)
        for name in ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_BINARY")
    ),
)
_LONGEST = 500  # characters of a message
_BLOCK = 1 << 20  # bytes, of which the checksum is computed while the next are read


class Listed(NamedTuple):
    """What a manifest says of a file.

    Attributes:
        size: In bytes.
        xxh3_128: Of its bytes, to be compared; empty if they were compared before.
    """

    size: int
    xxh3_128: str = ""


class StoredFiles:
    """The regular files of a directory, by path relative to it.

    Args:
        directory: Of the checkpoint's tensors.
        listed: Each file; None where there is no list, and all count.
    """

    def __init__(self, directory: str, listed: Mapping[str, Listed] | None) -> None:
        self.directory = directory
        self._listed = dict(_found(directory) if listed is None else listed)
        self.sizes = {name: file.size for name, file in self._listed.items()}

    def inside(self, folder: str) -> "StoredFiles":
        """Those in a folder, by path relative to that."""
        begin = f"{folder}/"
        found = {
            name.removeprefix(begin): file
            for name, file in self._listed.items()
            if name.startswith(begin)
        }
        return StoredFiles(os.path.join(self.directory, folder), found)

    def path(self, name: str) -> str:
        """Where a file is."""
        return os.path.join(self.directory, *name.split("/"))

    def open(self, name: str) -> int:
        """The descriptor of a file.

        Raises:
            CorruptCheckpointError: It is not listed, or is no regular file of its size.
        """
        if name not in self.sizes:
            raise corrupt(f"{name} is missing, or is not one of the checkpoint's files")
        if not hasattr(os, "O_NOFOLLOW") and os.path.islink(self.path(name)):
            raise corrupt(f"{name} is no regular file")
        try:
            descriptor = os.open(self.path(name), _FLAGS)
        except OSError as error:
            if error.errno in _NOT_THERE:
                raise corrupt(f"{name} is no regular file") from None
            raise
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size != self.sizes[name]:
            os.close(descriptor)
            raise corrupt(f"{name} is not a regular file of {self.sizes[name]:,} bytes")
        return descriptor

    def read(self, name: str, limit: int) -> bytes:
        """All of a small file.

        Raises:
            CorruptCheckpointError: It cannot be opened, or is larger.
        """
        with open(self.open(name), "rb") as file:
            if self.sizes[name] > limit:
                raise corrupt(f"{name} has {self.sizes[name]:,} bytes")
            return file.read(limit)

    def pieces(self, name: str, places: Iterable[slice]) -> Iterator[bytes]:
        """Some bytes of a file, whose checksum they are not compared with.

        Raises:
            CorruptCheckpointError: It cannot be opened, or has no such place.
        """
        with open(self.open(name), "rb", buffering=0) as file:
            for place in places:
                if not 0 <= place.start <= place.stop <= self.sizes[name]:
                    raise corrupt(f"{name} is shorter than a place in it")
                piece = bytearray(place.stop - place.start)
                file.seek(place.start)
                _fill(memoryview(piece), file)
                yield bytes(piece)

    def mapped(self, name: str) -> memoryview:
        """The bytes of a file; whoever writes to them writes to a copy.

        Raises:
            CorruptCheckpointError: It cannot be opened.
        """
        with open(self.open(name), "rb") as file:
            if not self.sizes[name]:
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))

    def read_into(self, name: str, parts: Iterable[tuple[slice, memoryview]]) -> None:
        """Read all of a file once: into memory, and for its checksum.

        Args:
            name: Of the file.
            parts: Places in it, and memory for the bytes there.

        Raises:
            CorruptCheckpointError: It cannot be opened, has another checksum, or the
                places overlap.
        """
        expected, digest = self._listed[name].xxh3_128, xxhash.xxh3_128()
        with (
            open(self.open(name), "rb", buffering=0) as file,
            ThreadPoolExecutor(1, "resilient-checksum") as beside,
        ):
            for block in _blocks(self.sizes[name], parts):
                _fill(block, file)
                if expected:
                    beside.submit(digest.update, block)
        if expected and digest.hexdigest() != expected:
            raise corrupt(f"{name} does not match its checksum")


def _blocks(
    size: int, parts: Iterable[tuple[slice, memoryview]]
) -> Iterator[memoryview]:
    """Memory for the bytes of a file from its beginning to its end, piece by piece."""
    at, in_order = 0, sorted(parts, key=lambda part: part[0].start)
    for place, memory in (*in_order, (slice(size, size), memoryview(b""))):
        if place.start < at:
            raise corrupt("two tensors have the same place in a file")
        for start in range(at, place.start, _BLOCK):  # of no tensor
            yield memoryview(bytearray(min(_BLOCK, place.start - start)))
        for start in range(0, len(memory), _BLOCK):
            yield memory[start : start + _BLOCK]
        at = place.stop


def _fill(block: memoryview, file: RawIOBase) -> None:
    while block:
        count = file.readinto(block)
        if not count:
            raise corrupt("a file became shorter while it was read")
        block = block[count:]


def _found(directory: str) -> Iterator[tuple[str, Listed]]:
    for folder, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(folder, name)
            found = os.lstat(path)
            if stat.S_ISREG(found.st_mode):
                inside = os.path.relpath(path, directory).replace(os.sep, "/")
                yield inside, Listed(found.st_size)


def corrupt(problem: str) -> CorruptCheckpointError:
    """The error for files that are not what is written there."""
    return CorruptCheckpointError(
        "The checkpoint's tensors cannot be read: their files do not have the "
        "expected format.",
        received=printable(problem[:_LONGEST]),  # one line: it may quote the files
        hint=ANOTHER_STEP,
    )


@contextlib.contextmanager
def decoding(what: str) -> Iterator[None]:
    """Turn whatever a library raises about the content of files into that error.

    Others pass: errors of the file system, which say nothing of the content, and that
    memory is short, since what is read is no larger than its files.
    """
    try:
        yield
    except (ResilientError, OSError, MemoryError):
        raise
    except Exception as error:  # of the library's own classes, or any of Python's
        raise corrupt(f"{what}: {type(error).__name__}: {error}") from error
