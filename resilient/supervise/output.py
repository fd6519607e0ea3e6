"""Shows the output of the processes, our messages and the status line.

In a terminal, rich keeps the status below everything else. Otherwise the bytes of a
single process pass through unchanged, and our messages are separate lines on stderr.
When nobody reads our output any more (``| head``), training continues and its output is
dropped.
"""

import contextlib
import io
import math
import os
import select
import threading
import time
from collections.abc import Callable
from typing import IO, Any, Protocol

from rich.ansi import AnsiDecoder
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from resilient.errors import printable

STDOUT, STDERR = 1, 2
_TAIL = 64 * 1024  # bytes of a stream to keep, to find out why a process ended
_PATIENCE = 2.0  # seconds for a stream to end after its process has
_CHUNK = 64 * 1024
_LONGEST_LINE = 64 * 1024  # output without newlines must not fill our memory
_NAME = "resilient: "


class Sink(Protocol):
    """Receives the bytes of one stream."""

    def write(self, data: bytes, /) -> Any: ...
    def flush(self) -> None: ...


class Descriptor(io.BufferedIOBase):
    """A file descriptor that several threads write to; it never raises.

    Attributes:
        name: Its number, as for files opened by descriptor.
        line_start: Whether the last write ended a line.
    """

    def __init__(self, number: int) -> None:
        self.name = number
        self._lock = threading.Lock()
        self._gone = False
        self.line_start = True

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        left = bytes(data)
        with self._lock:
            if left:
                self.line_start = left.endswith(b"\n")
            while left and not self._gone:
                try:
                    left = left[os.write(self.name, left) :]
                except BlockingIOError:
                    select.select([], [self.name], [])
                except OSError:
                    self._gone = True
        return len(data)


class Lines:
    """Shows whole lines.

    Attributes:
        rest: Output since the last newline.
    """

    def __init__(self, show: Callable[[bytes], object]) -> None:
        self._show = show
        self.rest = b""

    def write(self, data: bytes, /) -> None:
        *lines, rest = (self.rest + data).split(b"\n")
        if (
            len(rest) > _LONGEST_LINE
        ):  # a progress bar: only its latest state is visible
            rest = rest[rest.rfind(b"\r") + 1 :]
        if len(rest) > _LONGEST_LINE:
            lines, rest = [*lines, rest], b""
        self.rest = rest
        for line in lines:
            self._show(line)

    def flush(self) -> None:
        """Show the last line even if it is unfinished."""
        rest, self.rest = self.rest, b""
        if rest:
            self._show(rest)


class Stream:
    """A thread that copies one stream of one process to its sink.

    Attributes:
        blocked_since: When the write in progress began, on ``time.monotonic``: it
            blocks while nobody reads our output. Infinity between writes.
    """

    def __init__(self, pipe: IO[bytes], sink: Sink) -> None:
        self._pipe = pipe
        self._sink = sink
        self._tail = b""
        self.blocked_since = math.inf
        self._thread = threading.Thread(target=self._copy, daemon=True)
        self._thread.start()

    def finish(self) -> str:
        """Wait for the end of the stream; return its last text.

        A process that escaped our clean-up may hold the stream open forever.
        """
        self._thread.join(_PATIENCE)
        return self._tail.decode(errors="replace")

    def _copy(self) -> None:
        with self._pipe:
            while data := os.read(self._pipe.fileno(), _CHUNK):
                self._tail = (self._tail + data)[-_TAIL:]
                self.blocked_since = time.monotonic()
                # Keep reading whatever happens: a pipe without a reader would end
                # training at its next line.
                with contextlib.suppress(Exception):
                    self._sink.write(data)
                self.blocked_since = math.inf
        self._sink.flush()


class Output:
    """Prints everything. A context manager: inside it, a terminal shows the status.

    Attributes:
        status: The line at the bottom of a terminal.
    """

    def __init__(self) -> None:
        self.status = ""
        self._stdout = self._stderr = Descriptor(STDOUT)
        # With `> log 2>&1`, either may have left the other in the middle of a line.
        if not os.path.sameopenfile(STDOUT, STDERR):
            self._stderr = Descriptor(STDERR)
        self._console = Console(
            file=io.TextIOWrapper(self._stderr, "utf-8", "replace", write_through=True),
            force_terminal=os.isatty(STDOUT) and os.isatty(STDERR),
            soft_wrap=True,
            highlight=False,
            markup=False,
            emoji=False,
        )
        self._lines: dict[tuple[int, str], Lines] = {}
        self._live = Live(
            console=self._console,
            get_renderable=self._below,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> "Output":
        self._live.start()  # shows nothing without a terminal
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def carry(self, pipe: IO[bytes], to: int, prefix: str) -> Stream:
        """Start forwarding a stream of a process.

        Args:
            pipe: Its bytes.
            to: ``STDOUT`` or ``STDERR``.
            prefix: Written before each line; "" passes bytes on unchanged.
        """
        descriptor = self._stdout if to == STDOUT else self._stderr
        if self._console.is_interactive:
            lines = Lines(lambda line: self._console.print(as_shown(prefix, line)))
            self._lines[to, prefix] = lines
            return Stream(pipe, lines)
        if not prefix:
            return Stream(pipe, descriptor)
        start = prefix.encode()
        return Stream(pipe, Lines(lambda line: descriptor.write(start + line + b"\n")))

    def say(self, text: str) -> None:
        """Print a message of our own."""
        if not (self._console.is_interactive or self._stderr.line_start):
            self._stderr.write(b"\n")
        lines = printable(text, lines=True).split("\n")
        ours = "\n".join(_NAME + line for line in lines)
        self._console.print(Text(ours, style="bold"))

    def _below(self) -> Group:
        """Unfinished lines, such as progress bars, and the status."""
        unfinished = [
            (prefix, each.rest) for (_, prefix), each in [*self._lines.items()]
        ]
        below = [as_shown(prefix, rest) for prefix, rest in unfinished if rest]
        below.append(Text(self.status, style="reverse"))
        for line in below:
            line.no_wrap, line.overflow = True, "ellipsis"
        return Group(*below)


def as_shown(prefix: str, line: bytes) -> Text:
    """A line as a terminal shows it: only what follows the last carriage return."""
    shown = line.rstrip(b"\r").decode(errors="replace")
    return Text(prefix) + AnsiDecoder().decode_line(shown)
