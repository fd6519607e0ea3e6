"""Writes to our stderr: the supervisor's messages, and what the processes write there.

The end of what a process writes to its stderr says why it died. Its stdout is ours.
"""

import contextlib
import os
import subprocess
import threading

from resilient.errors import printable

_STDERR = 2
_TAIL = 64 * 1024  # bytes to keep of a process
_PATIENCE = 2.0  # seconds for a stream to end after its process has


class Stderr:
    """Our stderr, shared by several threads; writing never raises."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._line_start = True

    def write(self, data: bytes) -> None:
        """Write bytes; without a reader, they are dropped, and training continues."""
        with self._lock, contextlib.suppress(OSError):
            self._line_start = data.endswith(b"\n")
            while data:
                data = data[os.write(_STDERR, data) :]

    def say(self, text: str) -> None:
        """Print a message of our own, each line marked."""
        lines = printable(text, lines=True).split("\n")
        ours = "".join(f"resilient: {line}\n" for line in lines)
        start = "" if self._line_start else "\n"
        self.write((start + ours).encode(errors="backslashreplace"))


class Tee(threading.Thread):
    """A thread that copies the stderr of a process to ours, and keeps its end."""

    def __init__(self, process: "subprocess.Popen[bytes]", stderr: Stderr) -> None:
        super().__init__(daemon=True)
        assert process.stderr is not None
        self._pipe, self._stderr = process.stderr, stderr
        self._tail = b""
        self.start()

    def run(self) -> None:
        """Copy until every process that has the stream has closed it."""
        with self._pipe:
            while data := os.read(self._pipe.fileno(), _TAIL):
                self._tail = (self._tail + data)[-_TAIL:]
                self._stderr.write(data)

    def finish(self) -> str:
        """Wait for the end of the stream; return its last text.

        A process that escaped our clean-up may hold the stream open forever.
        """
        self.join(_PATIENCE)
        return self._tail.decode(errors="replace")
