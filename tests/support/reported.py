"""Runs that were never trained: their events, as a training would have left them."""

import json
from pathlib import Path
from typing import Any

Line = tuple[str, float, str, dict[str, Any]]


def write_events(directory: Path, start: float, lines: list[Line]) -> None:
    """Write events: the attempt, seconds after the start, the event, other fields."""
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / "events.jsonl", "a") as file:
        for attempt, when, event, fields in lines:
            who = {"attempt": attempt, "host": "node-7", "pid": 1}
            line = {"time": start + when, "event": event, **who, **fields}
            file.write(json.dumps(line) + "\n")


def killed_and_resumed(directory: Path, start: float) -> None:
    """Killed at 80 s and step 70, resumed at 100 s from step 40, ended at 4,000 s."""
    who = {"host": "node-7", "pid": 1, "directory": "runs", "count": 70}
    died = {"attempt": "a1", "time": start + 80, "phase": "training", "step": 70}
    died |= {"epoch": 0, "batch": 70, **who}
    exited = {"kind": "killed or lost", "why": "it was killed by SIGKILL", "step": 70}
    cost = {"seconds": 0, "stall": 0, "nbytes": 1_500_000}
    lines: list[Line] = [
        ("a1", 0, "started", {"previous": None}),
        ("a1", 10, "training", {"step": 1}),
        ("a1", 48, "metrics", {"step": 40, "epoch": 1, "batch": 0, **logs(1.0, 1.5)}),
        ("a1", 50, "saved", {"step": 40, **cost, "seconds": 2, "stall": 1}),
        ("s0", 90, "exited", exited),
        ("b2", 100, "started", {"previous": died, "host": "node-8"}),
        ("b2", 104, "restored", {"step": 40, "seconds": 4}),
        ("b2", 110, "training", {"step": 41}),
        ("b2", 130, "repeated", {"step": 70, "repeated": 30}),
        (
            "b2",
            1100,
            "save failed",
            {"step": 2000, "error": "the disk is full"},
        ),
        (
            "b2",
            4000,
            "metrics",
            {"step": 6000, "epoch": 3, "batch": 0, **logs(0.25, 0.5)},
        ),
        ("b2", 4000, "saved", {"step": 6000, **cost, "postponed": True}),
        ("b2", 4000, "ended", {"step": 6000}),
    ]
    write_events(directory, start, lines)


def logs(loss: float, val_loss: float) -> dict[str, Any]:
    """The field of an event."""
    return {"logs": {"loss": loss, "val_loss": val_loss}}
