"""Words a proof: a table that fills as it proceeds, the verdict, and JSON."""

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from resilient.cli.diff import to_json
from resilient.cli.style import BAD, GOOD, console, in_terminal, say
from resilient.errors import printable
from resilient.serialization import JSON

if TYPE_CHECKING:
    from rich.console import RenderableType

    from resilient.prove.proof import Proof

_LINES = 15  # of a script's output, and of what is missing


@contextlib.contextmanager
def shown(backend: str | None, *, quiet: bool) -> Iterator[Callable[["Proof"], None]]:
    """Show the proof as it proceeds: live in a terminal, line by line elsewhere."""
    from rich.live import Live

    if quiet or not in_terminal():
        yield _in_lines(quiet)
        return
    with Live(console=console(), refresh_per_second=8) as live:
        yield lambda proof: live.update(_drawn(proof, backend))


def _in_lines(quiet: bool) -> Callable[["Proof"], None]:
    told = 0

    def show(proof: "Proof") -> None:
        nonlocal told
        lines = [] if quiet else _lines(proof)
        if len(lines) < told:
            say("Once more, with earlier kills:")
            told = 0
        for line in lines[told:]:
            say(line)
        told = len(lines)

    return show


def _lines(proof: "Proof") -> list[str]:
    """A line for each kill after which the script was run again."""
    return [
        f"Kill {number}: while {kill.ending.phase or 'starting'}, after "
        f"{kill.ending.reached or 'nothing'}; "
        + (f"resumed at {kill.resumed}." if kill.resumed else "then did not train.")
        for number, kill in enumerate(proof.kills, 1)
        if kill.after is not None
    ]


def _drawn(proof: "Proof", backend: str | None) -> "RenderableType":
    """The table, and a progress bar."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    title = f"on {backend}" if backend else None
    table = Table(title=title, box=None, pad_edge=False)
    for column in ("kill", "while", "after", "resumed at"):
        table.add_column(column)
    for number, kill in enumerate(proof.kills, 1):
        ending = kill.ending
        cells = (str(number), ending.phase, str(ending.reached or "-"), kill.resumed)
        table.add_row(*(Text(printable(cell)) for cell in cells))
    if not proof.stage:
        return table
    bar = ProgressBar(total=proof.steps or None, completed=proof.done, width=40)
    return Group(table, Text(f"{proof.stage} "), bar)


def report(proof: "Proof") -> None:
    """Print the verdict, and why."""
    for note in proof.notes:
        say(f"Note: {note}")
    if proof.equal:
        say(f"Proven: after {_kills(proof)}, {_compared(proof)}.", GOOD)
    elif proof.alike and proof.over:
        _report_no_resume(proof)
    else:
        _report_differences(proof)


def _kills(proof: "Proof") -> str:
    return f"{len(proof.kills)} kill{'s' * (len(proof.kills) != 1)}"


def _compared(proof: "Proof") -> str:
    if proof.options.trial.data_only:
        return f"all {proof.steps:,} batches are the same, in the same order"
    ends = " and the final checkpoints" if proof.ends else ""
    return (
        f"all {proof.steps:,} recorded states{ends} are equal byte for byte: weights, "
        "optimizer, metrics, History, random state"
    )


def _report_no_resume(proof: "Proof") -> None:
    if proof.kills:
        say(
            f"NOT proven: after {_kills(proof)}, training never went on from a "
            "checkpoint.",
            BAD,
        )
        seed = proof.options.seed + 1
        say(f"Prove it again with --seed {seed}, or let it train for longer.")
        return
    say("NOT proven: the script ended before it could be killed.", BAD)
    say("Let it train for longer, or more epochs, and prove it again.")


def _report_differences(proof: "Proof") -> None:
    if proof.failed is not None:
        say(
            f"NOT proven: run again after {_kills(proof)}, the script failed with "
            f"status {proof.failed.status}. Its last lines:",
            BAD,
        )
        for line in proof.failed.last_lines.splitlines()[-_LINES:]:
            say(f"  {line}")
    elif proof.kills:
        say(f"NOT equal after {_kills(proof)}.", BAD)
    else:
        say("NOT proven: without any kill, the second run was different.", BAD)
    if proof.first is not None:
        leaves = ", ".join(proof.first.leaves[:5]) or "the batch"
        say(f"First different at {proof.first.place}: {leaves}")
    for each in proof.missing[:_LINES]:
        say(f"Only in one of the two: {each}")
    for run, found in proof.ends.items():
        if not found.equal:
            count = sum(each.counts for each in found.differences)
            say(
                f"At the end of {run}: {count:,} places differ. See: "
                f"resilient diff {found.a['path']} {found.b['path']}"
            )
    for number, reason in enumerate(proof.reasons):
        say(("Likely: " if not number else "Or: ") + reason.text)
        for line in reason.lines:
            say(f"  {line}")
    if not proof.reasons:
        say(
            "No known cause was found. If the script repeats without kills, please "
            "report this."
        )


def proof_to_json(proof: "Proof") -> JSON:
    """All of a proof, as JSON."""
    first = proof.first
    return {
        "equal": proof.equal,
        "steps": proof.steps,
        "kills": [
            {
                "phase": kill.ending.phase,
                "after": None
                if kill.ending.reached is None
                else str(kill.ending.reached),
                "resumed": kill.resumed,
            }
            for kill in proof.kills
        ],
        "first": None
        if first is None
        else {"at": str(first.place), "leaves": list(first.leaves)},
        "ends": {run: to_json(found) for run, found in proof.ends.items()},
        "missing": proof.missing,
        "notes": proof.notes,
        "failed": None if proof.failed is None else proof.failed.status,
        "reasons": [{"text": x.text, "lines": list(x.lines)} for x in proof.reasons],
    }
