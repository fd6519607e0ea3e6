"""Matches a checkpoint's callbacks to those of a changed run, and describes changes.

Callbacks are matched by class and order. New callbacks get nothing, and keep what
``on_train_begin`` left them; state of missing callbacks is dropped.
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
    """What each callback of these classes gets from a checkpoint.

    Args:
        saved: The entries of the checkpoint's callbacks; the n-th belongs to
            ``callbacks.n``.
        classes: The classes of the run's callbacks.
    """
    theirs = [entry["class"] for entry in saved]
    if theirs == list(classes):
        return list(saved)
    places = dict(enumerate(i for i, cls in enumerate(theirs) if cls in classes))
    if [theirs[i] for i in places.values()] != list(classes):
        blocks = SequenceMatcher(None, theirs, classes, autojunk=False)
        places = {
            block.b + k: block.a + k
            for block in blocks.get_matching_blocks()
            for k in range(block.size)
        }
    names = {f"callbacks.{old}": f"callbacks.{new}" for new, old in places.items()}
    return [
        _renamed(saved[places[new]], names) if new in places else {"class": cls}
        for new, cls in enumerate(classes)
    ]


def _renamed(entry: Encoded, names: Mapping[str, str]) -> Encoded:
    """An entry with its paths changed to those of the matching callbacks."""

    def path(old: object) -> str | None:
        for before, now in names.items():
            if isinstance(old, str) and is_below(old, before):
                return now + old.removeprefix(before)
        return None

    def renamed(data: Any) -> Any:
        """The same with references changed, or LookupError without one."""
        if isinstance(data, dict):
            if data.get("!") == "ref":
                found = path(data.get("v"))
                if found is None:
                    raise LookupError
                return {**data, "v": found}
            return {key: renamed(item) for key, item in data.items()}
        return [renamed(item) for item in data] if isinstance(data, list) else data

    objects = {}
    for home, saved in entry.get("objects", {}).items():
        here = path(home)
        # Drop whatever refers to a missing callback.
        with contextlib.suppress(LookupError):
            if here is not None:
                objects[here] = renamed(saved)
    return {**entry, "objects": objects}


def size(entries: Sequence[Encoded]) -> int:
    """How many parts of a state these entries have."""
    return sum(
        sum(map(_parts, entry.get("objects", {}).values()))
        + (entry.get("state_dict", _NO_STATE) != _NO_STATE)
        + (entry.get("special") is not None)
        for entry in entries
    )


def _parts(entry: Mapping[str, Any]) -> int:
    """How many attributes an entry has, or 1."""
    return len(entry.get("attributes", ())) + len(entry.keys() - {"attributes"})


def describe(was: Sequence[str], now: Sequence[str]) -> str:
    """How one list of callbacks differs from another, in one line."""
    if sorted(was) == sorted(now):
        return (
            "callbacks: the checkpoint has them in a different order "
            f"({_names(was)}; now {_names(now)})"
        )
    done = []
    for what, i, j in edits(was, now):
        if what == "replace":
            old, new = was[i], now[j]
            done.append(f"{_short(new, old)} replaced {_short(old, new)}")
        else:
            name = now[j] if what == "insert" else was[i]
            verb = "added" if what == "insert" else "removed"
            done.append(f"{name.rpartition('.')[2]} was {verb}")
    return f"callbacks: {', '.join(done)}"


def _short(name: str, other: str) -> str:
    """The class name alone, unless only the module distinguishes them."""
    last = name.rpartition(".")[2]
    return name if last == other.rpartition(".")[2] else last


def _names(classes: Sequence[str]) -> str:
    return ", ".join(name.rpartition(".")[2] for name in classes) or "none"
