"""What the commands print for people; with ``--json`` the same data goes as it is.

What is shown may come from anywhere: all goes through ``_print`` and ``_add_row``.
"""

import time
from collections.abc import Mapping
from typing import Literal

from rich.console import Console
from rich.table import Table

from resilient.errors import printable
from resilient.serialization import JSON

_NUMBERS = ("step", "epoch", "batch", "size", "time", "share", "from step", "to step")
_OUTCOMES = {
    "died": "exited without reporting an error",
    "unknown": "none (running, or died)",
}


def ls(data: JSON) -> None:
    """Print a line for each checkpoint, then what cannot be used and quarantine."""
    if data["checkpoints"]:
        table = _table("step", "epoch", "batch", "saved", "size", "metrics")
        for checkpoint in data["checkpoints"]:
            _add_row(
                table,
                f"{checkpoint['step']:,}",
                f"{checkpoint['epoch'] + 1:,}",
                f"{checkpoint['batch']:,}",
                checkpoint["created"],
                size(checkpoint["nbytes"]),
                metrics(checkpoint["metrics"])
                + ("  finished" if checkpoint["finished"] else ""),
            )
        _print(table)
    for damaged in data["damaged"]:
        _print(f"damaged: {damaged['name']}: {'; '.join(damaged['problems'])}")
    _unread(data)
    for entry in data["quarantine"]:
        _print(f"in quarantine: {entry['name']}, {entry['kind']}: {entry['text']}")


def show(data: JSON) -> None:
    """Print what one checkpoint holds."""
    state = "finished" if data["finished"] else "not finished"
    _print(data["path"])
    _print(
        f"step {data['step']:,} (epoch {data['epoch'] + 1:,}, "
        f"batch {data['batch']:,}), {state}"
    )
    _print(f"saved {data['created']}, {size(data['nbytes'])}")
    _print(f"metrics: {metrics(data['metrics']) or 'none'}")
    for name, version in data["environment"].items():
        _print(f"{name}: {version}")
    table = _table("file", "size", "xxh3_128")
    for name, record in data["files"].items():
        _add_row(table, name, size(record["size"]), record["xxh3_128"])
    _print(table)


def verify(data: JSON) -> None:
    """Print a verdict for each checkpoint, with a line for each problem or remark."""
    for checkpoint in data["checkpoints"]:
        _print(
            f"{checkpoint['name']}: {'damaged' if checkpoint['problems'] else 'good'}"
        )
        for problem in checkpoint["problems"]:
            _print(f"  {problem}")
        if checkpoint["signature"] is not None:
            _print(f"  {checkpoint['signature']}")
        for name in checkpoint["unlisted"]:
            _print(
                f"  {name} is not listed in the manifest: it was added later, and is "
                "not read"
            )
    _unread(data)


def _unread(data: JSON) -> None:
    for kind in ("newer", "unreadable"):
        for each in data[kind]:
            _print(f"{kind}: {each['name']}: {' '.join(each['message'].split())}")


def prune(data: JSON) -> None:
    """Print what was deleted and what is left."""
    verb = "Would delete" if data["dry_run"] else "Deleted"
    removed = ", ".join(f"{step:,}" for step in data["removed"]) or "nothing"
    kept = ", ".join(f"{step:,}" for step in data["kept"])
    _print(f"{verb}: {removed} ({size(data['nbytes'])}). Kept: {kept}.")


def report(data: JSON) -> None:
    """Print where the time of a run went, then a line for each attempt."""
    seconds, steps = data["seconds"], data["steps"]
    _print(f"goodput {data['goodput']:.1%} of {duration(seconds['whole'])}")
    table = _table("part", "time", "share")
    for name, value in seconds.items():
        if name != "whole":
            share = value / seconds["whole"] if seconds["whole"] else 0.0
            _add_row(table, name, duration(value), f"{share:.1%}")
    _print(table)
    _print(f"steps: {steps['surviving']:,}, and {steps['lost']:,} more that were lost")
    table = _table("attempt", "started", "time", "from step", "to step", "end", "host")
    for attempt in data["attempts"]:
        _add_row(
            table,
            attempt["attempt"],
            time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(attempt["started"])),
            duration(attempt["ended"] - attempt["started"]),
            f"{attempt['restored'] or 0:,}",
            f"{attempt['step']:,}",
            _OUTCOMES.get(attempt["outcome"], attempt["outcome"]),
            attempt["host"],
        )
    _print(table)


def duration(seconds: float) -> str:
    """A time to the tenth of a second below a minute, to the second above."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def size(nbytes: int) -> str:
    """A number of bytes in decimal units, to three digits."""
    value, unit = float(nbytes), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.5 or unit == "TB":
            break
        value /= 1000
    return f"{value:.3g} {unit}"


def metrics(values: Mapping[str, float | str]) -> str:
    """Metrics on one line; NaN and infinities come as text."""
    return ", ".join(f"{name} {float(x):.4g}" for name, x in values.items())


def _print(what: str | Table) -> None:
    """Print one line, or a table."""
    # Into a file or a pipe nothing is cut off: there is no width to fit into.
    console = Console(markup=False, highlight=False, emoji=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = 1000
    console.print(printable(what) if isinstance(what, str) else what)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        justify: Literal["left", "right"] = "right" if column in _NUMBERS else "left"
        table.add_column(column, justify=justify, overflow="fold")
    return table


def _add_row(table: Table, *cells: str) -> None:
    table.add_row(*map(printable, cells))
