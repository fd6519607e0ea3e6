"""Says how a checkpoint's list of tensors differs from the live model's.

Differences are worded for users: metrics by their names, everything else by path, shape
and dtype.
"""

from collections.abc import Sequence

from resilient.state.difference import line
from resilient.state.variables import GROUPS, Leaf, Saved, matched, place

_NAMED = 20  # differences; with a changed width nearly all variables differ
_WEIGHT_GROUPS = GROUPS[:2]
_WEIGHTS = tuple(f"{group}." for group in _WEIGHT_GROUPS)


def differences(
    saved: Saved, live: Sequence[Leaf], *, groups: Sequence[str] = (*GROUPS, "extra")
) -> list[str]:
    """The differences between the saved and the live layout, a line each."""
    found = []
    for group in groups:
        theirs = [s for s in saved if s["name"].startswith(f"{group}.")]
        ours = [leaf for leaf in live if leaf.name.startswith(f"{group}.")]
        pairs = matched(theirs, ours)
        if len(theirs) != len(pairs) or len(ours) != len(pairs):
            found.append(_others(group, theirs, ours))
            if group == "optimizer":  # slots of one variable follow one another
                continue
        found += [
            f"{group} variable {new.path}: the checkpoint has {old['path']} "
            f"{tuple(old['shape'])} {old['dtype']}, "
            f"this model has {new.shape} {new.dtype}"
            for old, new in pairs
            if (tuple(old["shape"]), old["dtype"]) != (new.shape, new.dtype)
        ]
    if len(found) > _NAMED:
        found[_NAMED:] = [f"and {len(found) - _NAMED:,} more variables"]
    return found


def _others(group: str, saved: Saved, live: Sequence[Leaf]) -> str:
    """The variables that only one side has.

    A metric's name is the first part of its variables' paths.
    """
    theirs = {place(each["name"]): each["path"] for each in saved}
    ours = {place(leaf.name): leaf.path for leaf in live}
    if group == "metrics":
        found = (
            {x.partition("/")[0]: 0 for x in each.values()} for each in (theirs, ours)
        )
        return line("metrics", *map(list, found))
    both = theirs.keys() & ours.keys()
    alone = [path for where, path in (theirs | ours).items() if where not in both]
    return (
        f"{group} variables: the checkpoint has {len(theirs)}, this model has "
        f"{len(ours)}; only one has {', '.join(alone[:5])}"
    )


def weight_differences(saved: Saved, live: Sequence[Leaf]) -> list[str]:
    """How the weights differ, whichever of the two groups they are in, a line each.

    A callback that freezes a layer when training begins moves weights from one group
    to the other.
    """
    theirs, ours = (
        sorted((v["shape"], v["dtype"]) for v in each if v["name"].startswith(_WEIGHTS))
        for each in (saved, [leaf.to_json() for leaf in live])
    )
    return differences(saved, live, groups=_WEIGHT_GROUPS) if theirs != ours else []
