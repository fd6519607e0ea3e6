"""Restores a checkpoint's weights and optimizer into a model outside ``fit``.

All or nothing, matched by group, order, shape and dtype. Seeds and metrics are restored
if the checkpoint has them, and otherwise left alone.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from resilient.backends import get_backend
from resilient.errors import CheckpointMismatchError
from resilient.serialization import JSON
from resilient.state import variables
from resilient.state.build import build_optimizer
from resilient.state.variables import Leaf

Pairs = list[tuple[Mapping[str, Any], Leaf]]

GROUPS = ("trainable", "non_trainable", "optimizer")


def group(name: str) -> str:
    """The group in a variable's name in a checkpoint."""
    return name.partition(".")[0]


def ready(model: keras.Model, groups: Sequence[str] = GROUPS) -> list[Leaf]:
    """The weights, seeds and optimizer variables of a model."""
    build_optimizer(model)
    return [leaf for leaf in variables.leaves(model) if group(leaf.name) in groups]


def needed(model: keras.Model, live: Sequence[Leaf]) -> dict[str, Leaf]:
    """The variables that a checkpoint must have, by name: weights and optimizer."""
    weights = {id(variable) for variable in model.weights}
    return {
        leaf.name: leaf
        for leaf in live
        if id(leaf.target) in weights or group(leaf.name) == "optimizer"
    }


def put(
    model: keras.Model,
    saved: Sequence[JSON],
    tensors: Any,
    path: Path,
    *,
    extra: bool = False,
) -> Pairs:
    """Set the weights, and the optimizer if the checkpoint has one.

    Args:
        model: The built model, compiled if the checkpoint has an optimizer.
        saved: The checkpoint's list of variables.
        tensors: Its tensors, by name.
        path: Where it is, for messages.
        extra: Whether the checkpoint is from a fit, so that it has all of them, and the
            ``extra`` group.

    Returns:
        The saved variables with the live ones that were set.

    Raises:
        CheckpointMismatchError: It belongs to a different model; nothing was changed.
    """
    pairs = _pairs(model, saved, path, extra=extra)
    layout, leaves = [old for old, _ in pairs], [leaf for _, leaf in pairs]
    variables.assign(get_backend(), layout, leaves, tensors)
    return pairs


def _pairs(
    model: keras.Model, saved: Sequence[JSON], path: Path, *, extra: bool
) -> Pairs:
    groups = (*GROUPS, "extra") if extra else GROUPS
    live = ready(model, groups)
    theirs = {_slot(v["name"]): v for v in saved if group(v["name"]) in groups}
    ours = {_slot(leaf.name): leaf for leaf in live}
    begins_anew = not any(slot.startswith("optimizer.") for slot in theirs)
    must = (
        set(ours)
        if extra
        else {
            _slot(name)
            for name in needed(model, live)
            if not (begins_anew and group(name) == "optimizer")
        }
    )
    found = [f"missing: {ours[slot].path}" for slot in ours if slot in must - {*theirs}]
    found += [f"unexpected: {theirs[k]['path']}" for k in theirs if k not in ours]
    pairs: Pairs = [(theirs[slot], ours[slot]) for slot in theirs if slot in ours]
    found += [
        f"{old['path']}: the checkpoint has {tuple(old['shape'])} {old['dtype']}, "
        f"this model's {leaf.path} is {leaf.shape} {leaf.dtype}"
        for old, leaf in pairs
        if (tuple(old["shape"]), old["dtype"]) != (leaf.shape, leaf.dtype)
    ]
    if found:
        raise CheckpointMismatchError(
            f"{path} does not match this model, or the model is not built yet. "
            "Nothing was changed.",
            received="\n  " + "\n  ".join(found),
            hint="Use the same model with the same optimizer, on the same backend, and "
            "build it (call it on a batch) first.",
        )
    return pairs


@contextlib.contextmanager
def kept(live: Sequence[Leaf]) -> Iterator[None]:
    """Reset every variable on exit."""
    backend = get_backend()
    before = dict(backend.snapshot(variables.tensors(live)).arrays)
    try:
        yield
    finally:
        variables.assign(backend, [leaf.to_json() for leaf in live], live, before)


def _slot(name: str) -> str:
    return ".".join(name.split(".")[:2])
