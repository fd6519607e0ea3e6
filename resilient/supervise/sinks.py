"""Where the output of a process goes: through unchanged, by lines, or above a status.

Whoever reads our output may go away (``| head``): the training goes on, and what it
prints goes nowhere.
"""

import io
import os
import select
import threading
from typing import Protocol

from rich.console import Console
from rich.text import Text

from resilient.supervise.lines import Lines, visible


class Sink(Protocol):
    """Takes the bytes of one stream; any thread may have some."""

    def feed(self, data: bytes) -> None: ...
    def end(self) -> None: ...


class Descriptor:
    """A file descriptor of ours, shared by all that write to it.

    Attributes:
        line_start: Whether what was written last was a whole line.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._lock = threading.Lock()
        self._gone = False
        self.line_start = True

    def write(self, data: bytes) -> None:
        """Write all of it; nothing if nobody reads any more."""
        with self._lock:
            if data:
                self.line_start = data.endswith(b"\n")
            while data and not self._gone:
                try:
                    data = data[os.write(self._number, data) :]
                except BlockingIOError:
                    select.select([], [self._number], [])
                except OSError:
                    self._gone = True


class Terminal(io.TextIOBase):
    """The same as a text file, for rich."""

    def __init__(self, to: Descriptor) -> None:
        self._to = to

    def write(self, text: str) -> int:
        self._to.write(text.encode(errors="replace"))
        return len(text)

    def isatty(self) -> bool:
        return True


class Verbatim:
    """Passes bytes on as they come."""

    def __init__(self, to: Descriptor) -> None:
        self._to = to

    def feed(self, data: bytes) -> None:
        self._to.write(data)

    def end(self) -> None:
        """Nothing is held back."""


class Prefixed:
    """Passes on whole lines, each with the name of its process."""

    def __init__(self, to: Descriptor, prefix: str) -> None:
        self._to = to
        self._prefix = prefix.encode()
        self._lines = Lines()

    def feed(self, data: bytes) -> None:
        self._write(self._lines.feed(data))

    def end(self) -> None:
        self._write(self._lines.end())

    def _write(self, lines: list[bytes]) -> None:
        self._to.write(b"".join(self._prefix + line + b"\n" for line in lines))


class TerminalSink:
    """Prints lines in a terminal, above a live status."""

    def __init__(self, console: Console, prefix: str) -> None:
        self._console = console
        self._prefix = prefix
        self._lines = Lines()

    def feed(self, data: bytes) -> None:
        self._print(self._lines.feed(data))

    def end(self) -> None:
        self._print(self._lines.end())

    def unfinished(self) -> Text:
        """The line that has no end yet; empty if there is none."""
        rest = visible(self._lines.rest)
        return self._text(rest) if rest else Text()

    def _print(self, lines: list[bytes]) -> None:
        for line in lines:
            self._console.print(self._text(visible(line)), soft_wrap=True)

    def _text(self, line: bytes) -> Text:
        return Text(self._prefix) + Text.from_ansi(line.decode(errors="replace"))
