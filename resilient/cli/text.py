"""What the commands print for people; with ``--json`` the same data goes as it is."""

import time
from collections.abc import Mapping
from typing import Literal

from rich.console import Console
from rich.table import Table

from resilient.serialization import JSON

_NUMBERS = ("step", "epoch", "batch", "size", "time", "share", "from step", "to step")
_OUTCOMES = {
    "died": "exited without reporting an error",
    "unknown": "none (running, or died)",
}


def ls(data: JSON) -> None:
    """Print a line for each checkpoint, then what is damaged and in quarantine."""
    console = _console()
    if data["checkpoints"]:
        table = _table("step", "epoch", "batch", "saved", "size", "metrics")
        for checkpoint in data["checkpoints"]:
            table.add_row(
                f"{checkpoint['step']:,}",
                f"{checkpoint['epoch'] + 1:,}",
                f"{checkpoint['batch']:,}",
                checkpoint["created"],
                size(checkpoint["nbytes"]),
                metrics(checkpoint["metrics"])
                + ("  finished" if checkpoint["finished"] else ""),
            )
        console.print(table)
    for damaged in data["damaged"]:
        console.print(f"damaged: {damaged['name']}: {'; '.join(damaged['problems'])}")
    for entry in data["quarantine"]:
        console.print(
            f"in quarantine: {entry['name']}, {entry['kind']}: {entry['text']}"
        )


def show(data: JSON) -> None:
    """Print what one checkpoint holds."""
    console = _console()
    state = "finished" if data["finished"] else "not finished"
    console.print(data["path"])
    console.print(
        f"step {data['step']:,} (epoch {data['epoch'] + 1:,}, "
        f"batch {data['batch']:,}), {state}"
    )
    console.print(f"saved {data['created']}, {size(data['nbytes'])}")
    console.print(f"metrics: {metrics(data['metrics']) or 'none'}")
    for name, version in data["environment"].items():
        console.print(f"{name}: {version}")
    table = _table("file", "size", "xxh3_128")
    for name, record in data["files"].items():
        table.add_row(name, size(record["size"]), record["xxh3_128"])
    console.print(table)


def verify(data: JSON) -> None:
    """Print a verdict for each checkpoint, with a line for each problem or remark."""
    console = _console()
    for checkpoint in data["checkpoints"]:
        console.print(
            f"{checkpoint['name']}: {'damaged' if checkpoint['problems'] else 'good'}"
        )
        for problem in checkpoint["problems"]:
            console.print(f"  {problem}")
        if checkpoint["signature"] is not None:
            console.print(f"  {checkpoint['signature']}")
        for name in checkpoint["unlisted"]:
            shown = name if name.isprintable() else ascii(name)
            console.print(
                f"  {shown} is not listed in the manifest: it was added later, and is "
                "not read"
            )


def prune(data: JSON) -> None:
    """Print what was deleted and what is left."""
    console = _console()
    verb = "Would delete" if data["dry_run"] else "Deleted"
    removed = ", ".join(f"{step:,}" for step in data["removed"]) or "nothing"
    kept = ", ".join(f"{step:,}" for step in data["kept"])
    console.print(f"{verb}: {removed} ({size(data['nbytes'])}). Kept: {kept}.")


def report(data: JSON) -> None:
    """Print where the time of a run went, then a line for each attempt."""
    console = _console()
    seconds, steps = data["seconds"], data["steps"]
    console.print(f"goodput {data['goodput']:.1%} of {duration(seconds['whole'])}")
    table = _table("part", "time", "share")
    for name, value in seconds.items():
        if name != "whole":
            share = value / seconds["whole"] if seconds["whole"] else 0.0
            table.add_row(name, duration(value), f"{share:.1%}")
    console.print(table)
    console.print(
        f"steps: {steps['surviving']:,}, and {steps['lost']:,} more that were lost"
    )
    table = _table("attempt", "started", "time", "from step", "to step", "end", "host")
    for attempt in data["attempts"]:
        table.add_row(
            attempt["attempt"],
            time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(attempt["started"])),
            duration(attempt["ended"] - attempt["started"]),
            f"{attempt['restored'] or 0:,}",
            f"{attempt['step']:,}",
            _OUTCOMES.get(attempt["outcome"], attempt["outcome"]),
            attempt["host"],
        )
    console.print(table)


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


def _console() -> Console:
    # Into a file or a pipe nothing is cut off: there is no width to fit into.
    console = Console(markup=False, highlight=False, emoji=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = 1000
    return console


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        justify: Literal["left", "right"] = "right" if column in _NUMBERS else "left"
        table.add_column(column, justify=justify, overflow="fold")
    return table
