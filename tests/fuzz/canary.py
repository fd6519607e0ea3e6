"""A file that nobody has a reason to open, and whether somebody did."""

import ctypes
import os
import struct
import sys
from pathlib import Path

_CONTENT = b"Nobody reads this."
_OPENED = 0x20  # IN_OPEN
_NO_WAIT = os.O_NONBLOCK | os.O_CLOEXEC


class Canary:
    """Watches with inotify where there is that: it sees the opens of C++, too."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(_CONTENT)
        self._descriptor = -1
        if sys.platform == "linux":
            libc = ctypes.CDLL(None, use_errno=True)
            self._descriptor = libc.inotify_init1(_NO_WAIT)
            libc.inotify_add_watch(self._descriptor, os.fsencode(path), _OPENED)

    def touched(self) -> bool:
        """Whether somebody opened or changed it since the last time."""
        opened = self._opened()
        changed = self.path.read_bytes() != _CONTENT
        self._opened()  # that was this line
        if changed:
            self.path.write_bytes(_CONTENT)
        return opened or changed

    def _opened(self) -> bool:
        try:
            return len(os.read(self._descriptor, 1 << 16)) >= struct.calcsize("iIII")
        except OSError:  # there is nothing to read
            return False
