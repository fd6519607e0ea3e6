"""Compares a checkpoint's list of tensors with the live model's, and adapts dtypes.

Differences are worded for users: metrics by their names, everything else by path, shape
and dtype. Another backend uses other dtypes: Keras counts in int64 on TensorFlow and in
int32 elsewhere; the state of its seed generators is int64, uint32 (JAX) or int32
(torch). Values stay the same; a value that the other dtype cannot hold is an error. (A
seed has 32 bits: torch shows them with a sign.)
"""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from resilient.errors import CheckpointMismatchError
from resilient.serialization import JSON
from resilient.state.comparison import line
from resilient.state.variables import GROUPS, Leaf, Saved, listed, matched, place

_NAMED = 20  # differences; with a changed width nearly all variables differ
_WEIGHT_GROUPS = GROUPS[:2]
_WEIGHTS = tuple(f"{group}." for group in _WEIGHT_GROUPS)
_SEEDS = "seed_generator_state"  # suffix of the paths of such variables
_INTEGERS = frozenset(f"{sign}int{bits}" for sign in ("", "u") for bits in (32, 64))
_WORD = (1 << 32) - 1


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
        for each in (saved, listed(live))
    )
    return differences(saved, live, groups=_WEIGHT_GROUPS) if theirs != ours else []


def cast(
    saved: Saved, tensors: Mapping[str, Any], live: Sequence[Leaf]
) -> tuple[list[JSON], dict[str, Any]]:
    """A checkpoint's list of variables and its tensors, in the dtypes of the live ones.

    Args:
        saved: The list.
        tensors: The tensors, by name.
        live: The variables that exist already; others stay as listed.

    Raises:
        CheckpointMismatchError: A dtype cannot hold a value.
    """
    found, arrays = {each["name"]: each for each in saved}, dict(tensors)
    for old, leaf in matched(saved, live):
        name = old["name"]
        if {old["dtype"], leaf.dtype} <= _INTEGERS:
            found[name] = {**old, "dtype": leaf.dtype}
        held = getattr(leaf.target, "value", leaf.target)  # JAX may hold fewer bits
        dtype = keras.backend.standardize_dtype(held.dtype)
        arrays[name] = _as(arrays[name], dtype, leaf.path)
    return [*found.values()], arrays


def _as(value: np.ndarray, dtype: str, path: str) -> np.ndarray:
    """The same values in another dtype."""
    kinds = {value.dtype.kind, np.dtype(dtype).kind} if dtype != "bfloat16" else set()
    if str(value.dtype) == dtype or not (kinds <= {*"iu"} or kinds == {"f"}):
        return value  # if it does not fit, assigning it will fail
    new = value.astype(dtype)
    fits = np.array_equal(new, value, equal_nan=True)
    if path.endswith(_SEEDS):
        new = (value.astype("int64") & _WORD).astype("uint32").astype(dtype)
        fits = bool(value.min() >= -(1 << 31) and value.max() <= _WORD)
    if not fits:
        raise CheckpointMismatchError(
            f"{path} has values in the checkpoint that this backend's dtype cannot "
            "hold.",
            received=f"{value.dtype}, of which {dtype} cannot hold all values",
            hint="Continue on the backend that saved it.",
        )
    return new
