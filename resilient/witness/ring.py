"""A file about the last steps, written without waiting, that outlives a kill.

A kill may come at any moment, and a disk may damage any byte: each value has a check
that fits only to it and its step, so what is torn, damaged or old is unknown and never
wrong.
"""

import contextlib
import os
import struct
import threading
import weakref
from pathlib import Path

import numpy as np

from resilient.storage.files import open_file, read_file

FIELDS = ("batch", "loss", "weights")  # in the order of a step
Field = str
Entries = dict[int, dict[Field, int]]  # step -> what is known of it

_SLOTS = 8192  # steps; the file holds the last ones, after a header
_ENTRY = struct.Struct("=3Q")  # of a field: the step, the value, the check of both
_SLOT = _ENTRY.size * len(FIELDS)
_MOST = (_SLOTS + 1) * _SLOT  # bytes
_ODD, _ODDER, _OFFSET = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9


class Ring:
    """What an attempt leaves of its steps, after the attempts that it continues.

    Args:
        directory: Where the file is.
        name: Of the file.
        key: Identifies what may be compared with this attempt: below 2**64.
        step: Where this attempt begins.
        continues: Whether it continues the attempt that left this file, if any did.

    Attributes:
        found: What is known of the steps after ``step``.

    Raises:
        OSError: The file cannot be created.
    """

    def __init__(
        self, directory: Path, name: str, key: int, step: int, *, continues: bool
    ) -> None:
        content = b""
        with contextlib.suppress(OSError):
            content = read_file(directory, name, _MOST) if continues else b""
        self.found = _known(content, key, step)
        flags = os.O_WRONLY | os.O_CREAT | (0 if self.found else os.O_TRUNC)
        self._file = open_file(directory, name, flags)
        weakref.finalize(self, os.close, self._file)
        if not self.found:
            self._put(0, key, step)

    def note(self, step: int, field: Field, value: int) -> None:
        """Leave a value below 2**64 of a step; from any thread."""
        slot = step % _SLOTS + 1
        self._put(slot * _SLOT + FIELDS.index(field) * _ENTRY.size, step, value)

    def forget(self, steps: range) -> None:
        """Leave nothing of these steps."""
        for step in steps[-_SLOTS:]:
            for field in range(len(FIELDS)):
                self._put((step % _SLOTS + 1) * _SLOT + field * _ENTRY.size, 0, 0)

    def _put(self, at: int, step: int, value: int) -> None:
        check = (value * _ODD + step * _ODDER + _OFFSET) % 2**64
        # Not mapped memory: there, a full disk or a lost mount kills the process.
        # Each step comes here: `suppress` takes as long as the write.
        try:  # noqa: SIM105
            _write_at(self._file, _ENTRY.pack(step, value, check), at)
        except OSError:
            pass


def _seek_and_write(file: int, content: bytes, at: int) -> None:
    with _lock:
        os.lseek(file, at, os.SEEK_SET)
        os.write(file, content)


_lock = threading.Lock()
_write_at = getattr(os, "pwrite", _seek_and_write)  # Windows does not have it


def _known(content: bytes, key: int, step: int) -> Entries:
    """What a file says of the steps after one; nothing if its attempt began later."""
    content += bytes(-len(content) % _SLOT)  # the last slot may have no more yet
    words = np.frombuffer(content, np.uint64).reshape(-1, len(FIELDS), 3)
    steps, values, checks = np.moveaxis(words, -1, 0)
    should = values * np.uint64(_ODD) + steps * np.uint64(_ODDER) + np.uint64(_OFFSET)
    right, began, found = should == checks, values[:1, 0], Entries()
    if not np.any(right[:1, 0] & (steps[:1, 0] == key) & (began <= step)):
        return {}
    right[0] = False
    for slot, field in np.argwhere(right & (steps > step)):
        entry = found.setdefault(int(steps[slot, field]), {})
        entry[FIELDS[field]] = int(values[slot, field])
    return found
