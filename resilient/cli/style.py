"""Formats output: lines, tables, numbers, times; colours only in a terminal.

Text may come from anywhere, so all of it goes through ``say`` and ``Rows``. Piped
output has no colours, and times in UTC; ``NO_COLOR`` and ``FORCE_COLOR`` are respected.
"""

import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from resilient.errors import printable
from resilient.serialization import JSON

if TYPE_CHECKING:
    from rich.console import Console

GOOD, BAD, NEWEST, HEADER = "green", "red", "bold", "bold"

_RIGHT = (
    *("step", "epoch", "batch", "size", "time", "share", "from step", "to step"),
    *("differ", "largest", "repeated"),
    *("loss", "goodput", "attempts", "faults"),
)
_DAYS = 60  # after which a date is clearer


def in_terminal() -> bool:
    """Whether the output goes to a terminal."""
    return console().is_terminal


def say(line: str, style: str = "") -> None:
    """Print one line."""
    from rich.text import Text

    _print(Text(printable(line), style))


class Rows:
    """A table without rules, printed in one piece."""

    def __init__(self, *columns: str) -> None:
        from rich.table import Table

        self.table = Table(box=None, pad_edge=False, header_style=HEADER)
        for column in columns:
            justify: Literal["left", "right"] = "right" if column in _RIGHT else "left"
            self.table.add_column(column, justify=justify, overflow="fold")

    def add(self, *cells: str, style: str = "", marks: Mapping[str, str] = {}) -> None:
        """Add a row.

        Args:
            cells: The texts of its cells.
            style: The style of the whole row.
            marks: Words after the last cell, each with its own style.
        """
        from rich.text import Text

        shown = [Text(printable(cell)) for cell in cells]
        for mark, how in marks.items():
            shown[-1].append("  " if shown[-1] else "").append(printable(mark), how)
        self.table.add_row(*shown, style=style)

    def print(self) -> None:
        _print(self.table)


def _print(what: Any) -> None:
    # Not printed by rich, which ends the process when the reader is gone.
    there = console()
    with there.capture() as captured:
        there.print(what)
    sys.stdout.write(captured.get())


def console() -> "Console":
    """Where output goes."""
    from rich.console import Console

    made = Console(markup=False, highlight=False, emoji=False, soft_wrap=True)
    if not made.is_terminal:
        made.width = 1000  # nothing is cut off without a terminal's width
    return made


def when(created: str) -> str:
    """A time in ISO 8601 and UTC; in a terminal, how long ago it was."""
    if not in_terminal():
        return created
    seconds = time.time() - datetime.fromisoformat(created).timestamp()
    return created if seconds < 0 else ago(seconds)


def ago(seconds: float) -> str:
    """How long ago something was, in the most useful unit."""
    for unit, length, limit in (
        ("s", 1, 60),
        ("min", 60, 60),
        ("h", 3600, 48),
        ("days", 86400, _DAYS),
    ):
        if seconds < length * limit:
            return f"{int(seconds // length)} {unit} ago"
    return datetime.fromtimestamp(time.time() - seconds, UTC).strftime("%Y-%m-%d")


def epoch_and_batch(data: JSON) -> tuple[str, str]:
    """Where a run is, with epochs counted from 1; a finished run has begun no other."""
    if data["finished"] and data["epoch"] and not data["batch"]:
        return f"{data['epoch']:,}", "end"
    return f"{data['epoch'] + 1:,}", f"{data['batch']:,}"
