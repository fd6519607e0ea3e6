"""``resilient diff``: whether two checkpoints hold the same state, and what differs.

``saving/compare`` finds the differences; this module prints them, as text or JSON.
"""

import argparse
import re
from collections import Counter
from typing import Any

from resilient.cli.commands import nothing
from resilient.cli.places import split
from resilient.cli.style import BAD, GOOD, Rows, epoch_and_batch, say
from resilient.saving.compare.compare import Comparison, Leaf, Side, compare
from resilient.serialization import JSON
from resilient.serialization.schema import strict
from resilient.storage.store import Store
from resilient.storage.stores import looked_at, near

_SAME, _DIFFERENT = range(2)  # exit codes
_SHOWN = 20  # rows in a table
_LONGEST = 28  # characters in a value
_VALUE = re.compile(r"(.+)\[(\d{1,15})\]")  # a metric in one epoch or step
_HOW = {
    "bits": "only zeros' signs or NaNs' bits",
    "only_a": "only in A",
    "only_b": "only in B",
}


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
    near(arguments.other)


def _diff(store: Store, arguments: argparse.Namespace) -> tuple[int, JSON]:
    with looked_at(arguments.other) as other:
        if not other.directory.is_dir():
            raise nothing("There is no directory", other)
        for each in (store, other):
            if not each.steps():
                raise nothing("There is no checkpoint in", each)
        found = compare(store, arguments.step, other, arguments.other_step)
    return (_SAME if found.equal else _DIFFERENT), to_json(found)


def to_json(found: Comparison) -> JSON:
    """The whole comparison, as JSON."""
    return {
        "equal": found.equal,
        "a": _side(found.a),
        "b": _side(found.b),
        "leaves": [_leaf(leaf) for leaf in found.leaves],
        "facts": [vars(fact) for fact in found.facts],
        "left_out": list(found.left_out),
    }


def _side(side: Side) -> JSON:
    return {
        "path": side.path,
        **side.progress.to_json(),
        "finished": side.finished,
        "saved_by": side.saved_by,
        "backend": side.backend,
        "environment": dict(side.environment),
    }


def _leaf(leaf: Leaf) -> JSON:
    apart, most = leaf.distance, None
    if apart is not None and apart.max_abs is not None:
        most = strict(apart.max_abs)
    return {
        "group": leaf.group,
        "name": leaf.name,
        "how": leaf.how,
        "a": leaf.a and {"shape": list(leaf.a.shape), "dtype": leaf.a.dtype},
        "b": leaf.b and {"shape": list(leaf.b.shape), "dtype": leaf.b.dtype},
        "size": leaf.size,
        "count": apart and apart.count,
        "unlike": apart and apart.unlike,
        "nans": apart and apart.nans,
        "max_abs": most,
        "max_ulps": apart and apart.max_ulps,
        "counts": leaf.counts,
    }


def report(data: JSON) -> None:
    """Print a comparison: the verdict, then the differences, largest first."""
    for name in ("a", "b"):
        side = data[name]
        epoch, batch = epoch_and_batch(side)
        place = f"epoch {epoch}, batch {batch}"
        place = f"end of epoch {epoch}" if batch == "end" else place
        say(f"{name.upper()}: {side['path']} ({place}, {side['backend']})")
    leaves = [leaf for leaf in data["leaves"] if leaf["how"] != "equal"]
    state = [leaf for leaf in leaves if leaf["counts"]]
    facts = [_worded(fact, data) for fact in data["facts"] if fact["counts"]]
    _verdict(data, state, facts)
    _tensors(state)
    _values(facts)
    others = [_as_fact(leaf) for leaf in leaves if not leaf["counts"]]
    others += [fact for fact in data["facts"] if not fact["counts"]]
    if others:
        say("Not part of the state, and different:")
        _values(others)
    for each in data["left_out"]:
        say(f"Not compared: {each}.")


def _worded(fact: JSON, data: JSON) -> JSON:
    """The fact with epochs counted from 1."""
    found = _VALUE.fullmatch(fact["name"])
    if fact["section"] != "history" or found is None:
        return fact
    of_loop = data["a"]["saved_by"] == "loop"
    where = f"step {found[2]}" if of_loop else f"epoch {int(found[2]) + 1}"
    return {**fact, "name": f"{found[1]}, {where}"}


def _verdict(data: JSON, leaves: list[JSON], facts: list[JSON]) -> None:
    every = [leaf for leaf in data["leaves"] if leaf["counts"]]
    if data["equal"]:
        say(f"equal: the same state, byte for byte ({len(every):,} tensors)", GOOD)
        return
    where = Counter(each["group"] for each in leaves)
    where.update(each["section"] for each in facts)
    differ = [f"{len(leaves):,} of {len(every):,} tensors"] if leaves else []
    differ += [f"{len(facts):,} other value{'s' * (len(facts) > 1)}"] if facts else []
    say(f"different: {' and '.join(differ)} ({', '.join(where)})", BAD)
    if not facts and all(leaf["how"] == "bits" for leaf in leaves):
        say(
            "All elements are equal as numbers: only signs of zeros or bits of NaNs "
            "differ."
        )


def _tensors(leaves: list[JSON]) -> None:
    if not leaves:
        return
    shown = sorted(leaves, key=_rank)[:_SHOWN]
    remarks = [_remark(leaf) for leaf in shown]
    rows = Rows("part", "tensor", "differ", "largest", "ulps", *[""] * any(remarks))
    for leaf, remark in zip(shown, remarks, strict=True):
        count, most, ulps = leaf["count"], leaf["max_abs"], leaf["max_ulps"]
        rows.add(
            leaf["group"],
            leaf["name"],
            "" if count is None else f"{count:,} of {leaf['size']:,}",
            "" if most is None else f"{float(most):.3g}",
            "" if ulps is None else f"{ulps:,}" if ulps < 10**6 else f"{ulps:.1e}",
            *[remark] * any(remarks),
        )
    rows.print()
    _and_more(leaves)


def _rank(leaf: JSON) -> tuple[bool, int, float]:
    """Sort the largest differences first, after those that have no number."""
    most = leaf["max_abs"]
    comparable = leaf["count"] is not None and leaf["how"] != "dtype"
    return comparable, -(leaf["nans"] or 0), -float(most or 0)


def _remark(leaf: JSON) -> str:
    if leaf["how"] in ("shape", "dtype"):
        one, other = leaf["a"], leaf["b"]
        return f"{_tensor(one)} in A, {_tensor(other)} in B"
    nans = leaf["nans"]
    return f"NaN on one side in {nans:,}" if nans else _HOW.get(leaf["how"], "")


def _tensor(tensor: JSON) -> str:
    return f"({', '.join(map(str, tensor['shape']))}) {tensor['dtype']}"


def _as_fact(leaf: JSON) -> JSON:
    told = {side: leaf[side] and _tensor(leaf[side]) for side in ("a", "b")}
    return {"section": leaf["group"], "name": leaf["name"], "only": None, **told}


def _values(facts: list[JSON]) -> None:
    if not facts:
        return
    rows = Rows("part", "value", "A", "B")
    for fact in facts[:_SHOWN]:
        a, b = (
            "-" if fact["only"] == other else _short(fact[side])
            for side, other in ("ab", "ba")
        )
        rows.add(fact["section"], fact["name"] or "all of it", a, b)
    rows.print()
    _and_more(facts)


def _and_more(found: list[JSON]) -> None:
    if len(found) > _SHOWN:
        say(f"and {len(found) - _SHOWN:,} more, which --json lists")


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
