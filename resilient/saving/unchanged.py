"""Tensors that training leaves alone: two checkpoints share the files that hold them.

Large tensors that were the same at the last save (frozen layers, embeddings that no
batch touched) are in a folder of their own. Where the checkpoint before the last has
the same ones, its files are linked: nothing is written, and nothing is read back.

    save 1  all              save 4  links those of save 2
    save 2  unchanged anew   save 5  links those of save 3
    save 3  unchanged anew   save 6  links those of save 4, once save 2 is pruned

So neighbours share nothing, at most two checkpoints share a file, and now and then it
is written again: damage to it leaves the checkpoint before, and takes one more at most.

What is unchanged is shown by memory that nobody can have written to (TensorFlow), or by
the checksum of the bytes: nothing else shows every write (ARCHITECTURE.md).
"""

import contextlib
import os
import shutil
import stat
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from resilient.backends.arrays import contiguous_bytes
from resilient.backends.base import Snapshot
from resilient.saving.part_files import UNCHANGED, VARIABLES
from resilient.storage.checkpoint import Checkpoint
from resilient.storage.file_record import FileRecord

_LARGE = 1 << 18  # bytes; smaller tensors are written before they are compared
_WORTH = 8 << 20  # bytes of unchanged tensors that are worth files of their own
_LINKS = 8  # then the files are written again
_AGAIN = 16  # saves; then tensors that have changed are compared again

# Of each tensor: its type, shape and checksum.
_Digests = dict[str, tuple[str, tuple[int, ...], bytes]]


@dataclass(frozen=True)
class _Saved:
    """A committed checkpoint.

    Attributes:
        path: Where.
        identity: Of the directory: another one may be there by now.
        group: Its unchanged tensors.
        files: That hold them, by path in the checkpoint.
        links: How often they were linked.
    """

    path: Path
    identity: tuple[int, int]
    group: _Digests
    files: Mapping[str, FileRecord]
    links: int

    def is_there(self) -> bool:
        """Whether it is still where it was committed."""
        try:
            return _identity(self.path) == self.identity
        except OSError:
            return False


class Unchanged:
    """Knows the last saves of a run of one process; for the thread that writes."""

    def __init__(self) -> None:
        self._saves = 0
        self._worth = True  # of a small state, nothing is compared
        self._last: _Digests = {}
        self._group: _Digests = {}
        self._held: dict[str, np.ndarray] = {}
        self._links = 0
        self._committed = deque[_Saved](maxlen=2)

    def write(self, snapshot: Snapshot, directory: str) -> dict[str, FileRecord]:
        """Write all tensors of a snapshot, and return the files that were linked.

        Args:
            snapshot: The tensors.
            directory: The staging directory; that of the variables exists.

        Returns:
            On disk already: by path, with the records of when they were written.

        Raises:
            OSError: The file system failed.
        """
        variables = os.path.join(directory, VARIABLES)
        arrays = snapshot.arrays if self._worth else {}
        self._group, self._links = self._unchanged(arrays), 0
        self._held = (
            {name: arrays[name] for name in self._group} if snapshot.shares else {}
        )
        if not self._group:
            snapshot.write(variables)
            return {}
        rest = [name for name in arrays if name not in self._group]
        snapshot.write(variables, names=rest)
        source, folder = self._source(), os.path.join(variables, UNCHANGED)
        if source is not None:
            with contextlib.suppress(OSError):
                _link(source, directory)
                self._links = source.links + 1
                return dict(source.files)
            shutil.rmtree(folder, ignore_errors=True)
        os.mkdir(folder)
        snapshot.write(folder, names=list(self._group))
        return {}

    def committed(self, checkpoint: Checkpoint) -> None:
        """What was written last is this checkpoint."""
        self._worth = checkpoint.nbytes >= _WORTH
        path, inside = checkpoint.path, f"{VARIABLES}/{UNCHANGED}/"
        files = {n: r for n, r in checkpoint.files.items() if n.startswith(inside)}
        try:
            saved = _Saved(path, _identity(path), self._group, files, self._links)
        except OSError:  # somebody was quick to remove it
            self._committed.clear()
        else:
            self._committed.append(saved)

    def _unchanged(self, arrays: Mapping[str, np.ndarray]) -> _Digests:
        """The tensors that were the same at the last save, if that is worth it."""
        last = self._last
        every = self._saves % _AGAIN < 2
        self._saves += 1
        self._last = {
            name: last[name]
            if _is_in(array, self._held.get(name))
            else (str(array.dtype), array.shape, _checksum(array))
            for name, array in arrays.items()
            # Of a tensor in shards, this is no array.
            if isinstance(array, np.ndarray)
            and array.nbytes >= _LARGE
            and (every or name in self._group)
        }
        same = {name: x for name, x in self._last.items() if last.get(name) == x}
        return same if sum(arrays[name].nbytes for name in same) >= _WORTH else {}

    def _source(self) -> _Saved | None:
        """The checkpoint whose files may be linked."""
        if len(self._committed) < 2:
            return None
        before_last, last = self._committed
        return (
            before_last
            if before_last.group == self._group
            and before_last.links < _LINKS
            and last.is_there()  # or the other one is the next to it
            and before_last.is_there()
            else None
        )


def _checksum(array: np.ndarray) -> bytes:
    return xxhash.xxh3_128_digest(contiguous_bytes(array))


def _is_in(array: np.ndarray, held: np.ndarray | None) -> bool:
    """Whether an array has the memory of one that is held, which nobody wrote to."""
    return (
        held is not None
        and array.__array_interface__ == held.__array_interface__
        and array.dtype == held.dtype
    )


def _identity(path: Path) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


def _link(source: _Saved, directory: str) -> None:
    """Raises OSError where a file has another link, or the system makes none."""
    for name, record in source.files.items():
        old, new = source.path / name, os.path.join(directory, name)
        found = os.lstat(old)
        if not stat.S_ISREG(found.st_mode) or found.st_size != record.size:
            raise OSError(f"{name} was replaced")
        os.makedirs(os.path.dirname(new), exist_ok=True)
        os.link(old, new, follow_symlinks=False)
        if os.lstat(new).st_nlink != 2:
            raise OSError(f"{name} has more links, or they are not counted")
