"""Whether a source is of a model: every tensor of it, and every variable of the model.

Nothing is cast, and nothing is left over on either side.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import keras
import numpy as np

from resilient.backends import get_backend
from resilient.convert.formats.named_tensors import Tensors, unique_names
from resilient.errors import CheckpointMismatchError
from resilient.state import variables
from resilient.state.variables import Leaf
from resilient.state.weights import GROUPS, group, kept, needed, ready

# Name of a tensor -> shape and name of its dtype.
Layout = Mapping[str, tuple[tuple[int, ...], str]]


def mismatch(source: Path, found: Sequence[str]) -> CheckpointMismatchError:
    """The error for a source that is not of the model."""
    return CheckpointMismatchError(
        f"{source} is not complete for this model, or holds more. Nothing was "
        "written, and the model is as it was.",
        received="\n  " + "\n  ".join(found),
        hint="Make the model, and compile it, as the program did that saved.",
    )


def require_same(source: Path, theirs: Layout, ours: Layout) -> None:
    """Compare what a source holds with what it has to hold.

    Raises:
        CheckpointMismatchError: They differ; every difference is listed.
    """
    found = [f"missing: {name}" for name in ours if name not in theirs]
    found += [f"unexpected: {name}" for name in theirs if name not in ours]
    found += [
        f"{name}: the source has {theirs[name][0]} {theirs[name][1]}, "
        f"the model {ours[name][0]} {ours[name][1]}"
        for name in theirs
        if name in ours and theirs[name] != ours[name]
    ]
    if found:
        raise mismatch(source, found)


def by_name(
    source: Path, tensors: Tensors, keys: Mapping[str, Leaf], model: keras.Model
) -> dict[str, np.ndarray]:
    """The values of variables, where a source names each of them.

    Args:
        source: Where it is from.
        tensors: What it holds.
        keys: What it calls the model's variables.
        model: The model.

    Returns:
        Arrays by names of ``keys``' leaves. Seeds only if the source has them, the
        optimizer if it has any of it; no metrics, which every epoch begins anew.
    """
    must = needed(model, list(keys.values()))
    if not any(group(keys[k].name) == "optimizer" for k in tensors if k in keys):
        must = {n: leaf for n, leaf in must.items() if group(n) != "optimizer"}
    ours = {
        key: (leaf.shape, leaf.dtype)
        for key, leaf in keys.items()
        if key in tensors or leaf.name in must
    }
    theirs = {name: (t.shape, str(t.dtype)) for name, t in tensors.items()}
    require_same(source, theirs, ours)
    return {
        keys[name].name: tensor
        for name, tensor in tensors.items()
        if group(keys[name].name) in GROUPS
    }


def paths(model: keras.Model) -> dict[str, Leaf]:
    """The variables by what an export calls them."""
    ready(model)
    live = variables.leaves(model)
    names = unique_names(leaf.path for leaf in live)
    return {
        name: leaf
        for name, leaf in zip(names, live, strict=True)
        if group(leaf.name) in (*GROUPS, "metrics")
    }


def by_loading(
    source: Path,
    live: Sequence[Leaf],
    must: Mapping[str, Leaf],
    load: Callable[[], None],
) -> dict[str, np.ndarray]:
    """The values that ``load`` gives to variables; these are put back afterwards.

    It is called twice, over other values: what differs then, it did not set.

    Args:
        source: What it loads.
        live: The model's variables.
        must: Those that it has to set, by name.
        load: Loads the source into the model.
    """
    with kept(live):
        first, second = (_loaded_over(fill, live, load) for fill in (0, 1))
    found = {
        name: value
        for name, value in first.items()
        if value.tobytes() == second[name].tobytes()
    }
    lost = [f"missing: {leaf.path}" for name, leaf in must.items() if name not in found]
    if lost:
        raise mismatch(source, lost)
    return found


def _loaded_over(
    fill: int, live: Sequence[Leaf], load: Callable[[], None]
) -> dict[str, np.ndarray]:
    backend, layout = get_backend(), [leaf.to_json() for leaf in live]
    before = backend.snapshot(variables.tensors(live)).arrays
    filled = {name: np.full_like(value, fill) for name, value in before.items()}
    variables.assign(backend, layout, live, filled)
    load()
    loaded = backend.snapshot(variables.tensors(live)).arrays
    return {name: np.array(value) for name, value in loaded.items()}
