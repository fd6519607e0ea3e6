"""What the commands print for people; ``--json`` prints the same data as JSON."""

from resilient.cli.style import (
    BAD,
    GOOD,
    NEWEST,
    Rows,
    epoch_and_batch,
    in_terminal,
    say,
    when,
)
from resilient.display import metrics, size
from resilient.serialization import JSON
from resilient.storage.manifest import Signature, has_key


def ls(data: JSON) -> None:
    """Print the checkpoints of a run, or the runs in a directory of several."""
    (_runs if "runs" in data else _checkpoints)(data)
    _unread(data)
    for entry in data.get("quarantine", []):
        say(f"in quarantine: {entry['name']}, {entry['kind']}: {entry['text']}")


def _checkpoints(data: JSON) -> None:
    """A line for each checkpoint, then the unusable ones."""
    rows = Rows("step", "epoch", "batch", "saved", "size", "metrics")
    for each in data["checkpoints"]:
        newest = in_terminal() and each["step"] == data["newest"]
        rows.add(
            f"{each['step']:,}",
            *epoch_and_batch(each),
            when(each["created"]),
            size(each["nbytes"]),
            metrics(each["metrics"]),
            style=NEWEST if newest else "",
            marks=_marks(each, data),
        )
    if data["checkpoints"]:
        rows.print()
    for damaged in data["damaged"]:
        say(f"damaged: {damaged['name']}: {'; '.join(damaged['problems'])}", BAD)


def _marks(checkpoint: JSON, data: JSON) -> dict[str, str]:
    marks = {"finished": GOOD} if checkpoint["finished"] else {}
    best = data["best"]
    if in_terminal():
        if checkpoint["step"] == data["newest"]:
            marks["newest"] = NEWEST
        if best is not None and checkpoint["step"] == best["step"]:
            marks[f"best {best['monitor']}"] = GOOD
    return marks


def _runs(data: JSON) -> None:
    """A line for each run."""
    rows = Rows("run", "step", "epoch", "batch", "saved", "size", "state")
    for run in data["runs"]:
        newest = run["newest"]
        cells = ("", "", "", "")
        if newest is not None:
            step, saved = f"{newest['step']:,}", when(newest["created"])
            cells = (step, *epoch_and_batch(newest), saved)
        marks = {"no checkpoint": ""} if newest is None and not run["damaged"] else {}
        if newest is not None and newest["finished"]:
            marks["finished"] = GOOD
        if run["damaged"]:
            marks[f"damaged: {', '.join(run['damaged'])}"] = BAD
        rows.add(run["name"], *cells, size(run["nbytes"]), "", marks=marks)
    rows.print()
    if not data["complete"]:
        say("and perhaps more: there are too many directories to search them all")


def verify(data: JSON) -> None:
    """Print a verdict for each checkpoint, with a line for each problem or remark.

    If no key is in use, unsigned checkpoints are not worth a remark.
    """
    unsigned = {None, str(Signature.NONE)}
    keys = has_key() or any(
        each["signature"] not in unsigned for each in data["checkpoints"]
    )
    for checkpoint in data["checkpoints"]:
        damaged = bool(checkpoint["problems"])
        verdict = "damaged" if damaged else "good"
        say(f"{checkpoint['name']}: {verdict}", BAD if damaged else GOOD)
        for problem in checkpoint["problems"]:
            say(f"  {problem}")
        if keys and checkpoint["signature"] is not None:
            say(f"  {checkpoint['signature']}")
        for name in checkpoint["unlisted"]:
            say(
                f"  {name} is not listed in the manifest: it was added later, and is "
                "not read"
            )
    _unread(data)


def _unread(data: JSON) -> None:
    for kind in ("newer", "unreadable"):
        for each in data[kind]:
            say(f"{kind}: {each['name']}: {' '.join(each['message'].split())}", BAD)


def prune(data: JSON) -> None:
    """Print what was deleted and what was kept."""
    verb = "Would delete" if data["dry_run"] else "Deleted"
    removed = ", ".join(f"{step:,}" for step in data["removed"]) or "nothing"
    kept = ", ".join(f"{step:,}" for step in data["kept"])
    say(f"{verb}: {removed} ({size(data['nbytes'])}). Kept: {kept}.")
