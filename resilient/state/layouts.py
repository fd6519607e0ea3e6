"""Says how a checkpoint's list of tensors differs from the live model's.

They are matched by structure, and differences are worded for users: metrics by their
names, everything else by path, shape and dtype.
"""

from collections.abc import Sequence
from typing import Any

from resilient.state.variables import GROUPS, Leaf

_NAMED = 20  # differences; with a changed width nearly all variables differ
_WEIGHT_GROUPS = GROUPS[:2]
_WEIGHTS = tuple(f"{group}." for group in _WEIGHT_GROUPS)

Saved = Sequence[dict[str, Any]]  # as Leaf.to_json


def differences(
    saved: Saved, live: Sequence[Leaf], *, groups: Sequence[str] = (*GROUPS, "extra")
) -> list[str]:
    """The differences between the saved and the live layout, a line each."""
    found = []
    for group in groups:
        theirs = [s for s in saved if s["name"].startswith(f"{group}.")]
        ours = [leaf for leaf in live if leaf.name.startswith(f"{group}.")]
        if group == "metrics" and (named := _other_metrics(theirs, ours)):
            found += named
            continue
        if len(theirs) != len(ours):
            found.append(
                f"{group} variables: the checkpoint has {len(theirs)}, "
                f"this model has {len(ours)}"
            )
        for old, new in zip(theirs, ours, strict=False):
            if (tuple(old["shape"]), old["dtype"]) != (new.shape, new.dtype):
                found.append(
                    f"{group} variable {new.path}: the checkpoint has {old['path']} "
                    f"{tuple(old['shape'])} {old['dtype']}, "
                    f"this model has {new.shape} {new.dtype}"
                )
    if len(found) > _NAMED:
        found[_NAMED:] = [f"and {len(found) - _NAMED:,} more variables"]
    return found


def _other_metrics(saved: Saved, live: Sequence[Leaf]) -> list[str]:
    """The metrics that only one side has, if that is the difference.

    A metric's name is the first part of its variables' paths. Numbers in automatic
    names depend on what was created before, so an equal number of variables is not a
    difference.
    """
    if len(saved) == len(live):
        return []
    theirs, ours = (
        list(dict.fromkeys(path.partition("/")[0] for path in paths))
        for paths in ([s["path"] for s in saved], [leaf.path for leaf in live])
    )
    added = [name for name in ours if name not in theirs]
    gone = [name for name in theirs if name not in ours]
    return [
        f"metrics: {who} has {', '.join(names)}, which {other} does not have"
        for who, names, other in (
            ("this model", added, "the checkpoint"),
            ("the checkpoint", gone, "this model"),
        )
        if names
    ]


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
