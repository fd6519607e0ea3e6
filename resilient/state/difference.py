"""Differences between a checkpoint and a run, in words."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from resilient.serialization import JSON


@dataclass(frozen=True)
class Difference:
    """One difference, in words.

    Attributes:
        of: What differs: ``"data"``, ``"optimizer"``, ``"config"``, ``"run"``...
        line: How it differs.
        group: The variables that start fresh if it is allowed: ``"optimizer.net"``.
    """

    of: str
    line: str
    group: str = ""


def differences(saved: JSON, live: JSON) -> list[str]:
    """Which facts differ, one line each, but for those inside of what differs.

    Args:
        saved: The facts of a checkpoint, by name.
        live: The facts of this run.
    """
    found: dict[str, str] = {}
    for name in saved | live:
        was, now = saved.get(name), live.get(name)
        inside = any(
            name.startswith((f"{x}.", f"{x}[", f"{x} ", f"{x}:")) for x in found
        )
        if not inside and repr(was) != repr(now):  # nan equals itself, True is not 1
            found[name] = line(name, was, now)
    return [*found.values()]


def line(name: str, was: Any, now: Any) -> str:
    """How one fact differs."""
    return f"{name}: the checkpoint has {short(was)}, this run has {short(now)}"


def short(value: Any) -> str:
    """A fact in words."""
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}..."


def edits(was: Sequence[str], now: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """The edits that turn one list of names into the other, and where in each.

    Yields:
        ``"insert"``, ``"delete"`` or ``"replace"``, of one name each.
    """
    for what, i, end, j, stop in SequenceMatcher(
        None, was, now, autojunk=False
    ).get_opcodes():
        for k in range(max(end - i, stop - j) if what != "equal" else 0):
            if i + k < end and j + k < stop:
                yield "replace", i + k, j + k
            elif i + k < end:
                yield "delete", i + k, stop
            else:
                yield "insert", end, j + k
