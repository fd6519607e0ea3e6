"""What the user sees: the output of the processes, our own messages, the status.

In a terminal a status line stays below all else. Anywhere else the output of a single
process passes through byte by byte, and our messages are lines of their own on stderr.
"""

import contextlib
import math
import os
import threading
import time
from collections.abc import Sequence
from typing import IO, cast

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from resilient.supervise.sinks import (
    Descriptor,
    Prefixed,
    Sink,
    Terminal,
    TerminalSink,
    Verbatim,
)

STDOUT, STDERR = 1, 2
_TAIL = 64 * 1024  # bytes kept of a stream, to find out why a process ended
_PATIENCE = 2.0  # seconds for a stream to end when its process is over
_CHUNK = 64 * 1024
_NAME = "resilient: "


class Stream:
    """A thread that carries one stream of one process to its sink.

    Attributes:
        waiting_since: Since when whoever reads our output takes nothing more of it, on
            ``time.monotonic``; infinity if it is taken.
    """

    def __init__(self, pipe: IO[bytes], sink: Sink) -> None:
        self._pipe = pipe
        self._sink = sink
        self._tail = b""
        self.waiting_since = math.inf
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def finish(self) -> str:
        """Wait for the end; the text that came last.

        A process that left our sight may hold the stream open: it is left to itself.
        """
        self._thread.join(_PATIENCE)
        return self._tail.decode(errors="replace")

    def _carry(self) -> None:
        with self._pipe:
            while data := os.read(self._pipe.fileno(), _CHUNK):
                self._tail = (self._tail + data)[-_TAIL:]
                self.waiting_since = time.monotonic()
                # Whatever cannot be shown: a pipe that nobody reads any more would
                # end the training at its next line.
                with contextlib.suppress(Exception):
                    self._sink.feed(data)
                self.waiting_since = math.inf
        self._sink.end()


class Output:
    """All that is printed.

    Attributes:
        status: The line that is shown at the bottom of a terminal.
    """

    def __init__(self) -> None:
        self.status = ""
        self._descriptors = {n: Descriptor(n) for n in (STDOUT, STDERR)}
        if _one_file():  # `> log 2>&1`: a line that one begins the other would go on
            self._descriptors[STDERR] = self._descriptors[STDOUT]
        self._terminals = [n for n in (STDOUT, STDERR) if _is_terminal(n)]
        self._live: Live | None = None
        self._above: dict[tuple[int, str], TerminalSink] = {}
        if self._terminals:
            self._console = Console(
                file=cast(IO[str], Terminal(self._descriptors[self._terminals[0]])),
                force_terminal=True,
                highlight=False,
                markup=False,
                emoji=False,
            )

    def start(self) -> None:
        """Show the status, where there is a terminal."""
        if self._terminals:
            self._live = Live(
                console=self._console,
                get_renderable=self._status,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()

    def stop(self) -> None:
        """Take the status away."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def carry(self, pipe: IO[bytes], to: int, prefix: str) -> Stream:
        """Begin to pass on a stream of a process.

        Args:
            pipe: Where its bytes come from.
            to: ``STDOUT`` or ``STDERR``.
            prefix: What stands before each line; "" for bytes as they are.
        """
        if to in self._terminals:
            above = self._above[to, prefix] = TerminalSink(self._console, prefix)
            return Stream(pipe, above)
        descriptor = self._descriptors[to]
        return Stream(
            pipe, Prefixed(descriptor, prefix) if prefix else Verbatim(descriptor)
        )

    def say(self, text: str) -> None:
        """Print a message of our own."""
        lines = [_NAME + line for line in text.splitlines()]
        if STDERR in self._terminals:
            for line in lines:
                self._console.print(Text(line, style="bold"), soft_wrap=True)
            return
        errors = self._descriptors[STDERR]
        start = "" if errors.line_start else "\n"
        errors.write((start + "".join(f"{line}\n" for line in lines)).encode())

    def summary(self, rows: Sequence[tuple[str, str]]) -> None:
        """Print what it all came to: a table in a terminal, else lines."""
        if STDERR not in self._terminals:
            self.say("\n".join(f"{name}: {value}" for name, value in rows))
            return
        table = Table(box=None, show_header=False, pad_edge=False)
        for name, value in rows:
            table.add_row(Text(_NAME + name, style="bold"), value)
        self._console.print(table)

    def _status(self) -> Group:
        """Lines that are not finished, such as progress bars, and the status."""
        status = Text(self.status, style="reverse")
        above = list(self._above.values())
        lines = [line for each in above if (line := each.unfinished())]
        for line in (*lines, status):
            line.no_wrap, line.overflow = True, "ellipsis"
        return Group(*lines, status)


def _one_file() -> bool:
    try:
        return os.path.sameopenfile(STDOUT, STDERR)
    except OSError:  # one of them is closed
        return False


def _is_terminal(descriptor: int) -> bool:
    return os.isatty(descriptor) and os.environ.get("TERM", "dumb") != "dumb"
