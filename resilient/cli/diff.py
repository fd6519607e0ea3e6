"""``resilient diff``: whether two checkpoints hold the same state, and what differs.

``saving/compare`` finds the differences; this module prints them, as text or JSON.
"""

import argparse
import math
from collections import Counter
from typing import Any

from resilient.cli.commands import nothing
from resilient.cli.places import split
from resilient.cli.style import BAD, GOOD, Rows, epoch_and_batch, say
from resilient.saving.compare import Comparison, compare
from resilient.serialization import JSON
from resilient.serialization.schema import strict
from resilient.storage.store import Store
from resilient.storage.stores import local_path, open_readonly

_SAME, _DIFFERENT = range(2)  # exit codes
_SHOWN = 20  # rows in a table
_LONGEST = 40  # characters in a value


def add_diff(add: Any) -> None:
    """Add the command to the others."""
    text = "Compare the state in two checkpoints, tensor by tensor."
    command = add("diff", _diff, report, text, directory=False)
    where = "a checkpoint_dir (its newest checkpoint), or DIR/step-00001800"
    command.add_argument("directory", metavar="A", help=where)
    command.add_argument("other", metavar="B", help="the same")
    command.set_defaults(takes_checkpoint=True, step=None, check=_check)


def _check(arguments: argparse.Namespace) -> None:
    arguments.other, arguments.other_step = split(arguments.other, None)
    local_path(arguments.other)


def _diff(store: Store, arguments: argparse.Namespace) -> tuple[int, JSON]:
    with open_readonly(arguments.other) as other:
        if not other.directory.is_dir():
            raise nothing("There is no directory", other)
        for each in (store, other):
            if not each.steps():
                raise nothing("There is no checkpoint in", each)
        found = compare(store, arguments.step, other, arguments.other_step)
    return (_SAME if found.equal else _DIFFERENT), to_json(found)


def to_json(found: Comparison) -> JSON:
    """The whole comparison, as JSON."""
    differences = [
        vars(each) | {"largest": None if each.largest is None else strict(each.largest)}
        for each in found.differences
    ]
    return {"equal": found.equal, **vars(found), "differences": differences}


def report(data: JSON) -> None:
    """Print a comparison: the verdict, then the differences, largest first."""
    for name in ("a", "b"):
        side = data[name]
        epoch, batch = epoch_and_batch(side)
        place = f"epoch {epoch}, batch {batch}"
        place = f"end of epoch {epoch}" if batch == "end" else place
        say(f"{name.upper()}: {side['path']} ({place}, {side['backend']})")
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
    """Print how far apart tensors are, and both values in other places."""
    tensors = [each for each in differences if each["count"] is not None]
    others = [each for each in differences if each["count"] is None]
    if tensors:
        _print(Rows("part", "tensor", "differ", "largest"), sorted(tensors, key=_rank))
    if others:
        _print(Rows("part", "value", "A", "B"), others)


def _print(rows: Rows, differences: list[JSON]) -> None:
    for each in differences[:_SHOWN]:
        rows.add(each["section"], each["name"] or "all of it", *_cells(each))
    rows.print()
    if len(differences) > _SHOWN:
        say(f"and {len(differences) - _SHOWN:,} more, which --json lists")


def _rank(tensor: JSON) -> float:
    """Sorts the largest differences first, after those that are no numbers."""
    largest = float(tensor["largest"])
    return -math.inf if math.isnan(largest) else -largest


def _cells(difference: JSON) -> list[str]:
    count, size = difference["count"], difference["size"]
    if count is not None:
        return [f"{count:,} of {size:,}", f"{float(difference['largest']):.3g}"]
    return [_short(difference[side]) for side in "ab"]


def _short(value: str | None) -> str:
    if value is None:
        return "-"
    return value if len(value) <= _LONGEST else f"{value[:_LONGEST]}..."
