"""``resilient diff``: whether two checkpoints hold the same state, and what differs.

``saving/compare`` finds the differences; this module prints them, as text or JSON.
"""

import argparse
import math
from collections import Counter

from resilient.cli.arguments import CHECKPOINT, Add, opened
from resilient.cli.commands import DAMAGED, OK, Result
from resilient.cli.style import BAD, GOOD, place, say, table
from resilient.saving.compare import compare
from resilient.serialization import JSON
from resilient.serialization.schema import strict

_SHOWN = 20  # rows in a table
_LONGEST = 40  # characters in a value


def add_to(add: Add) -> None:
    """Add the command to the others."""
    about = (
        "Compare the state in two checkpoints, tensor by tensor. Loads the library of "
        "the backend that saved them."
    )
    command = add("diff", _diff, about)
    for name in "ab":
        command.add_argument(name, **CHECKPOINT | {"metavar": name.upper()})


def _diff(arguments: argparse.Namespace) -> Result:
    with opened(arguments.a) as a, opened(arguments.b) as b:
        found = compare(a, arguments.a.step, b, arguments.b.step)
    differences = [
        vars(each) | {"largest": None if each.largest is None else strict(each.largest)}
        for each in found.differences
    ]
    data = {"equal": found.equal, **vars(found), "differences": differences}
    return OK if found.equal else DAMAGED, data, _report


def _report(data: JSON) -> None:
    """Print a comparison: the verdict, then the differences, largest first."""
    for name in "ab":
        side = data[name]
        say(f"{name.upper()}: {side['path']} ({place(side)}, {side['backend']})")
    state = [each for each in data["differences"] if each["counts"]]
    others = [each for each in data["differences"] if not each["counts"]]
    if data["equal"]:
        say(f"equal: the same state, byte for byte ({data['tensors']:,} tensors)", GOOD)
    else:
        parts = Counter(each["section"] for each in state)
        places = ", ".join(f"{count:,} in {part}" for part, count in parts.items())
        say(f"different: {places}", BAD)
        _tables(state)
    if others:
        say("Not part of the state, and different:")
        _tables(others)


def _tables(differences: list[JSON]) -> None:
    """Print how far apart tensors are, the largest difference first, and the others."""
    tensors = [each for each in differences if each["count"] is not None]
    others = [each for each in differences if each["count"] is None]
    for found in (sorted(tensors, key=_rank), others):
        rows = [(x["section"], x["name"] or "all of it", _words(x)) for x in found]
        if rows:
            say(table(("part", "leaf", "difference"), rows[:_SHOWN]))
        if len(rows) > _SHOWN:
            say(f"and {len(rows) - _SHOWN:,} more, which --json lists")


def _rank(tensor: JSON) -> float:
    """Sorts the largest differences first, after those that are no numbers."""
    largest = float(tensor["largest"])
    return -math.inf if math.isnan(largest) else -largest


def _words(difference: JSON) -> str:
    """Describe how far apart two tensors are, or what both sides have."""
    if (count := difference["count"]) is not None:
        largest = float(difference["largest"])
        return f"{count:,} of {difference['size']:,}, by up to {largest:.3g}"
    sides = ["-" if difference[x] is None else difference[x] for x in "ab"]
    return " -> ".join(x if len(x) <= _LONGEST else f"{x[:_LONGEST]}..." for x in sides)
