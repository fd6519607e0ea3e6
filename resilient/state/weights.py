"""Restores a checkpoint's weights and optimizer into a model outside ``fit``.

All or nothing, matched by group, order, shape and dtype. Seeds and metrics are restored
if the checkpoint has them, and otherwise left alone.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from resilient.backends import get_backend
from resilient.errors import CheckpointMismatchError
from resilient.serialization import JSON
from resilient.state import variables
from resilient.state.build import build_optimizer
from resilient.state.layouts import differences
from resilient.state.variables import Leaf, Saved, place

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
    saved: Saved,
    tensors: Mapping[str, Any],
    path: Path,
    *,
    extra: bool = False,
) -> list[tuple[JSON, Leaf]]:
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
    groups = (*GROUPS, "extra") if extra else GROUPS
    saved = [each for each in saved if group(each["name"]) in groups]
    live, there = ready(model, groups), {place(each["name"]) for each in saved}
    if not extra:
        must = needed(model, live)
        if not any(name.startswith("optimizer.") for name in there):  # begins anew
            must = {n: leaf for n, leaf in must.items() if group(n) != "optimizer"}
        live = [x for x in live if x.name in must or place(x.name) in there]
    if found := differences(saved, live, groups=groups):
        raise CheckpointMismatchError(
            f"{path} does not match this model, or the model is not built yet. "
            "Nothing was changed.",
            received="\n  " + "\n  ".join(found),
            hint="Use the same model with the same optimizer, on the same backend, and "
            "build it (call it on a batch) first.",
        )
    variables.assign(get_backend(), saved, live, tensors)
    return variables.matched(saved, live)
