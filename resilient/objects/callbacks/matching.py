"""Matches a checkpoint's callbacks to those of a changed run, and describes changes.

Callbacks are matched by class and order. New callbacks get nothing, and keep what
``on_train_begin`` made of them; state of missing callbacks is dropped.
"""

import contextlib
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from resilient.objects.tree import is_below
from resilient.serialization import Encoded
from resilient.serialization.json_values import encode
from resilient.state.difference import edits

_NO_STATE = encode({}, {}, "state")


def matched(saved: Sequence[Encoded], classes: Sequence[str]) -> list[Encoded]:
    """What each callback of these classes gets from a checkpoint; a new one: ``{}``.

    Args:
        saved: The entries of the checkpoint's callbacks; the n-th belongs to
            ``callbacks.n``.
        classes: The classes of the run's callbacks.
    """
    theirs = [entry["class"] for entry in saved]
    old = [index for index, cls in enumerate(theirs) if cls in classes]
    new = [index for index, cls in enumerate(classes) if cls in theirs]
    was, now = [theirs[index] for index in old], [classes[index] for index in new]
    places = dict(zip(new, old, strict=False))
    if was != now:
        found = SequenceMatcher(None, was, now, autojunk=False).get_matching_blocks()
        places = {new[j + k]: old[i + k] for i, j, size in found for k in range(size)}
    names = dict.fromkeys(map(_name, range(len(saved))))
    names |= {_name(i): _name(j) for j, i in places.items()}
    moved = {before: after for before, after in names.items() if before != after}
    entries = [_renamed(entry, moved) if moved else entry for entry in saved]
    return [entries[places[j]] if j in places else {} for j in range(len(classes))]


def _name(index: int) -> str:
    return f"callbacks.{index}"


def _renamed(entry: Encoded, names: Mapping[str, str | None]) -> Encoded:
    """An entry with its paths changed to those of the matching callbacks."""

    def path(old: str) -> str:
        """Where an object is now, or LookupError if its callback is missing."""
        for before, now in names.items():
            if is_below(old, before):
                if now is None:
                    raise LookupError
                return now + old.removeprefix(before)
        return old

    def renamed(data: Any) -> Any:
        """The same with references changed, or LookupError without one."""
        if isinstance(data, dict):
            if data.get("!") == "ref" and isinstance(data.get("v"), str):
                return {**data, "v": path(data["v"])}
            return {key: renamed(item) for key, item in data.items()}
        return [renamed(item) for item in data] if isinstance(data, list) else data

    objects = {}
    for home, saved in entry.get("objects", {}).items():
        # Drop whatever refers to a missing callback.
        with contextlib.suppress(LookupError):
            objects[path(home)] = renamed(saved)
    return {**entry, "objects": objects}


def size(entries: Sequence[Encoded]) -> int:
    """How many parts of a state these entries have."""
    return sum(
        len(entry.get("objects", ()))
        + (entry.get("state_dict", _NO_STATE) != _NO_STATE)
        + (entry.get("special") is not None)
        for entry in entries
    )


def describe(was: Sequence[str], now: Sequence[str]) -> str:
    """How one list of callbacks differs from another, in one line."""
    if sorted(was) == sorted(now):
        return (
            "callbacks: the checkpoint has them in a different order "
            f"({_names(was)}; now {_names(now)})"
        )
    done = []
    for _, old, new in edits(was, now):
        if old and new:
            done.append(f"{_short(new, old)} replaced {_short(old, new)}")
        else:
            verb = "removed" if old else "added"
            done.append(f"{(old or new or '').rpartition('.')[2]} was {verb}")
    return f"callbacks: {', '.join(done)}"


def _short(name: str, other: str) -> str:
    """The class name alone, unless only the module distinguishes them."""
    last = name.rpartition(".")[2]
    return name if last == other.rpartition(".")[2] else last


def _names(classes: Sequence[str]) -> str:
    return ", ".join(name.rpartition(".")[2] for name in classes) or "none"
