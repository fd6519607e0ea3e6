"""Differences between a checkpoint and a run, in words."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any

from resilient.serialization import JSON

SETTINGS = "settings"  # in ``Difference.of``: only warns


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


def changed(saved: JSON, live: JSON) -> list[str]:
    """The names of the facts that differ, but for those inside of what differs.

    Args:
        saved: The facts of a checkpoint, by name.
        live: The facts of this run.
    """
    found: list[str] = []
    for name in saved | live:
        inside = name.startswith(tuple(f"{x}{end}" for x in found for end in ".[ :"))
        # As text, nan equals itself, and True is not 1.
        if not inside and repr(saved.get(name)) != repr(live.get(name)):
            found.append(name)
    return found


def differences(saved: JSON, live: JSON) -> list[str]:
    """The same, a line each."""
    names = changed(saved, live)
    return [line(name, saved.get(name), live.get(name)) for name in names]


def line(name: str, was: Any, now: Any) -> str:
    """How one fact differs."""
    return f"{name}: the checkpoint has {short(was)}, this run has {short(now)}"


def short(value: Any) -> str:
    """A fact in words."""
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}..."


def edits(
    was: Sequence[str], now: Sequence[str]
) -> Iterator[tuple[int, str | None, str | None]]:
    """The edits that turn one list of names into the other.

    Yields:
        A place in the first list, what is there, and what replaces it.
    """
    matcher = SequenceMatcher(None, was, now, autojunk=False)
    for what, i, end, j, stop in matcher.get_opcodes():
        if what != "equal":
            pairs = zip_longest(was[i:end], now[j:stop])
            yield from ((i + k, *pair) for k, pair in enumerate(pairs))
