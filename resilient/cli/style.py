"""Prints lines and tables; colours only in a terminal.

Text may come from anywhere, so all of it is escaped. ``NO_COLOR`` and ``FORCE_COLOR``
are respected.
"""

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

from resilient.errors import printable
from resilient.serialization import JSON
from resilient.telemetry.events import KILLED

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

GOOD, BAD = "green", "red"
# Words that have a colour of their own as the first of a cell.
_STYLES = {"alive": GOOD, "ended": GOOD, KILLED: BAD, "failed": BAD, "diverged": BAD}
_RIGHT = (
    *("step", "epoch", "batch", "size", "time", "share", "from step", "to step"),
    *("repeated", "attempt", "goodput", "attempts", "faults"),
)


def say(what: "str | Table", style: str = "") -> None:
    """Print a line, or a table."""
    from rich.text import Text

    # Not printed by rich, which ends the process when the reader is gone.
    there = console()
    with there.capture() as captured:
        there.print(Text(printable(what), style) if isinstance(what, str) else what)
    sys.stdout.write(captured.get())


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> "Table":
    """A table without rules."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        justify: Literal["left", "right"] = "right" if column in _RIGHT else "left"
        made.add_column(column, justify=justify, overflow="fold")
    for row in rows:
        styles = (_STYLES.get(cell.partition(",")[0], "") for cell in row)
        made.add_row(*map(Text, map(printable, row), styles))
    return made


def console() -> "Console":
    """Where output goes."""
    from rich.console import Console

    made = Console(markup=False, highlight=False, emoji=False, soft_wrap=True)
    if not made.is_terminal:
        made.width = 1000  # nothing is cut off without a terminal's width
    return made


def epoch_and_batch(data: JSON) -> tuple[str, str]:
    """Where a run is, with epochs counted from 1; a finished run has begun no other."""
    if data["finished"] and data["epoch"] and not data["batch"]:
        return f"{data['epoch']:,}", "end"
    return f"{data['epoch'] + 1:,}", f"{data['batch']:,}"


def place(data: JSON) -> str:
    """Where a run is, in words."""
    epoch, batch = epoch_and_batch(data)
    return (
        f"end of epoch {epoch}" if batch == "end" else f"epoch {epoch}, batch {batch}"
    )
