"""Finds the weights that a source and a model share: same path, shape and dtype.

Nothing is cast. If all weights are to be set, all must be there.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from resilient.convert.tensor_files import unique_names
from resilient.errors import CheckpointMismatchError, printable
from resilient.state.variables import Leaf

_NAMED = 20  # weights that an error names

Pairs = list[tuple[Leaf, np.ndarray]]


class Weight(NamedTuple):
    """One of a source whose weights are in the order of its model."""

    group: str
    path: str
    value: np.ndarray


def of_weights(
    source: Path,
    theirs: Sequence[Weight],
    ours: Sequence[Leaf],
    layers: re.Pattern[str] | None,
) -> tuple[Pairs, list[str]]:
    """The weights that fit, of a run's checkpoint; arguments as of ``of_paths``.

    All of them may also fit by their order: the names that Keras gives by itself differ
    from one model to the next.
    """
    names = unique_names(weight.path for weight in theirs)
    named = {n: weight.value for n, weight in zip(names, theirs, strict=True)}
    if layers is None and named.keys() != _by_name(ours).keys():
        theirs = sorted(theirs, key=lambda weight: weight.group)
        ordered = sorted(ours, key=lambda leaf: leaf.slot[0])
        groups = [[w.group for w in theirs], [leaf.slot[0] for leaf in ordered]]
        pairs = [(b, a.value) for a, b in zip(theirs, ordered, strict=False)]
        if groups[0] == groups[1] and not any(_difference(*pair) for pair in pairs):
            return pairs, []
    return of_paths(source, named, ours, layers, complete=True)


def of_paths(
    source: Path,
    named: Mapping[str, np.ndarray],
    ours: Sequence[Leaf],
    layers: re.Pattern[str] | None,
    *,
    complete: bool = False,
) -> tuple[Pairs, list[str]]:
    """The weights that fit, and why others of those that are wanted do not.

    Args:
        source: For messages.
        named: What it has, by path.
        ours: The weights of the model.
        layers: Matches the paths of those that are wanted; None: all have to fit.
        complete: Whether it has nothing but weights, and they are of one model: then
            all of them have to be used, too.

    Raises:
        CheckpointMismatchError: One does not fit, of all; or none does, of some.
    """
    wanted = _by_name(ours)
    if layers is not None:
        wanted = {n: leaf for n, leaf in wanted.items() if layers.fullmatch(leaf.path)}
        if not wanted:
            what = f"No weight of this model has a path that {layers.pattern!r} matches"
            raise _mismatch(what, source, [f"here: {leaf.path}" for leaf in ours])
    pairs, left = [], []
    for name, leaf in wanted.items():
        if name not in named:
            left.append(f"{name} (missing)")
        elif difference := _difference(leaf, named[name]):
            left.append(f"{name} ({difference})")
        else:
            pairs.append((leaf, named[name]))
    others = [f"there: {name}" for name in named if name not in wanted]
    if layers is None and (left or (complete and others)):
        what = "Its weights do not match this model's"
        raise _mismatch(what, source, left + others)
    if not pairs:
        raise _mismatch(
            "The source has none of the requested weights with the same shape and "
            "dtype",
            source,
            left,
        )
    return pairs, left


def _by_name(ours: Sequence[Leaf]) -> dict[str, Leaf]:
    return dict(zip(unique_names(leaf.path for leaf in ours), ours, strict=True))


def _difference(leaf: Leaf, value: np.ndarray) -> str:
    there, here = (value.shape, str(value.dtype)), (leaf.shape, leaf.dtype)
    if there == here:
        return ""
    return f"{there[0]} {there[1]} there, {here[0]} {here[1]} here"


def _mismatch(
    problem: str, source: Path, found: Sequence[str]
) -> CheckpointMismatchError:
    lines = [printable(line) for line in found[:_NAMED]]
    if len(found) > _NAMED:
        lines.append(f"and {len(found) - _NAMED} more")
    return CheckpointMismatchError(
        f"{problem}. Nothing was changed.",
        received=f"{source}\n  " + "\n  ".join(lines),
        hint='Take only some layers, for example start_layers="encoder/.*": a '
        "regular expression that matches whole weight paths.",
    )
