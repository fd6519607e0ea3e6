"""Tensors that training leaves alone: two checkpoints share the files that hold them.

Large tensors that were the same at the last save (frozen layers, embeddings that no
batch touched) are in a folder of their own. Where the checkpoint before the last has
the same ones, its files are linked: nothing is written, and nothing is read back.

    save 1  all              save 4  links those of save 2
    save 2  unchanged anew   save 5  links those of save 3
    save 3  unchanged anew   save 6  links those of save 4, once save 2 is pruned

So neighbours share nothing (``storage/prune`` sees to it when one is deleted), and at
most two checkpoints share a file. It is read before it is linked: one that is damaged
is written anew.

What is unchanged is shown by the checksum of the bytes: nothing else shows every write
(ARCHITECTURE.md).
"""

import logging
import os
import shutil
from collections import deque
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import xxhash

from resilient.backends.arrays import as_bytes
from resilient.saving.snapshot import UNCHANGED, VARIABLES, Snapshot
from resilient.storage.checkpoint import Checkpoint
from resilient.storage.files import open_file
from resilient.storage.manifest import FileRecord, record

logger = logging.getLogger(__name__)

_LARGE = 1 << 18  # bytes; smaller tensors are written before they are compared
_WORTH = 8 << 20  # bytes of unchanged tensors that are worth files of their own
_INTERVAL = 16  # saves; then tensors that have changed are compared once more

# Of each tensor: its type, shape and checksum.
_Digests = dict[str, tuple[str, tuple[int, ...], bytes]]


class Unchanged:
    """Knows the last saves of a run of one process; for the thread that writes."""

    def __init__(self) -> None:
        self._saves = 0
        self._last: _Digests = {}
        self._group: _Digests = {}  # unchanged, in the files written last
        # With their unchanged tensors.
        self._committed = deque[tuple[Checkpoint, _Digests]](maxlen=2)

    def write(self, snapshot: Snapshot, variables: str) -> dict[str, FileRecord]:
        """Write all tensors of a snapshot, and return the files that were linked.

        Args:
            snapshot: The snapshot.
            variables: A directory for its tensors, in the staging directory.

        Returns:
            On disk already, and read: by path in the staging directory.

        Raises:
            OSError: The file system failed.
        """
        # If this save fails, what is known of the tensors is still true.
        tensors, alone = snapshot.tensors, snapshot.part.count == 1
        self._group = self._unchanged(tensors.arrays) if alone else {}
        if not self._group:
            tensors.write(variables, snapshot.part)
            return {}
        changed = [name for name in tensors.arrays if name not in self._group]
        tensors.write(variables, names=changed)
        source = self._source(snapshot.progress.step)
        folder = os.path.join(variables, UNCHANGED)
        if source is not None:
            try:
                return _link(source, os.path.dirname(variables))
            except OSError as error:
                logger.info("Unchanged tensors are written again: %s", error)
                shutil.rmtree(folder, ignore_errors=True)
        os.mkdir(folder)
        tensors.write(folder, names=list(self._group))
        return {}

    def committed(self, checkpoint: Checkpoint) -> None:
        """Note that what was written last is this checkpoint."""
        self._committed.append((checkpoint, self._group))

    def _unchanged(self, arrays: Mapping[str, np.ndarray]) -> _Digests:
        """The tensors that were the same at the last save, if that is worth it."""
        last = self._last
        every = (
            self._saves % _INTERVAL < 2
        )  # two in a row: to compare one with the other
        self._saves += 1
        self._last, nbytes = {}, 0
        for name in arrays if every else self._group:
            array = arrays.get(name)
            # Of a tensor in shards, it is no array.
            if isinstance(array, np.ndarray) and array.nbytes >= _LARGE:
                checksum = xxhash.xxh3_128_digest(as_bytes(array).data)
                found = str(array.dtype), array.shape, checksum
                self._last[name] = found
                nbytes += array.nbytes if last.get(name) == found else 0
        same = {name: x for name, x in self._last.items() if last.get(name) == x}
        return same if nbytes >= _WORTH else {}

    def _source(self, step: int) -> Checkpoint | None:
        """The checkpoint whose files the one of this step may link."""
        if len(self._committed) == 2:
            (source, group), (last, _) = self._committed
            # Without the last one, its neighbour would be linked.
            there = source.step < last.step < step and os.path.exists(last.path)
            if there and group == self._group:
                return source
        return None


def _link(source: Checkpoint, directory: str) -> dict[str, FileRecord]:
    """Link all files with unchanged tensors, and return their records.

    Raises:
        OSError: One has another link or other bytes, or the system makes no links.
    """
    records = {}
    for name, expected in source.files.items():
        if not name.startswith(f"{VARIABLES}/{UNCHANGED}/"):
            continue
        new = os.path.join(directory, name)
        os.makedirs(os.path.dirname(new), exist_ok=True)
        os.link(source.path / name, new, follow_symlinks=False)
        with open(open_file(Path(directory), name), "rb", buffering=0) as file:
            found = os.fstat(file.fileno())
            if found.st_nlink != 2:
                raise OSError(f"{name} has more links, or they are not counted")
            records[name] = record(file, found.st_size)
        if not records[name].matches(expected):
            logger.warning(
                "%s is damaged. Its tensors are written again.", source.path / name
            )
            raise OSError(f"{name} does not match its checksum")
    return records
