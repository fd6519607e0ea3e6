"""Matches a source to a model: all of it is used, and every weight is set.

Nothing is cast, and nothing is left over on either side. A safetensors file is matched
by name. Any other is loaded into the model by Keras, twice and over different values,
which shows what it set.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import keras
import numpy as np

from resilient.backends import get_backend
from resilient.convert.tensor_files import Tensors, unique_names
from resilient.errors import CheckpointMismatchError
from resilient.state import variables
from resilient.state.variables import Leaf
from resilient.state.weights import GROUPS, group, needed, ready

# Name of a tensor -> shape and name of its dtype.
Layout = Mapping[str, tuple[tuple[int, ...], str]]


def mismatch(source: Path, found: Sequence[str]) -> CheckpointMismatchError:
    """The error for a source that does not match the model."""
    return CheckpointMismatchError(
        f"{source} does not match this model. Nothing was written, and the model was "
        "not changed.",
        received="\n  " + "\n  ".join(found),
        hint="Build and compile the model as in the program that saved it.",
    )


def require_same(source: Path, theirs: Layout, ours: Layout) -> None:
    """Compare what a source holds with what it should hold.

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


def by_name(source: Path, tensors: Tensors, model: keras.Model) -> Tensors:
    """The values of the model's variables, from a source that names each of them.

    Seeds only if the source has them, the optimizer if it has any of it, and no
    metrics: those start over with every epoch.

    Raises:
        CheckpointMismatchError: The source is not of this model.
    """
    names = _names(model)
    known = {group(names[name].name) for name in tensors if name in names}
    must = _required(model, optimizer="optimizer" in known)
    ours = {
        name: (leaf.shape, leaf.dtype)
        for name, leaf in names.items()
        if name in tensors or leaf.name in must
    }
    theirs = {name: (t.shape, str(t.dtype)) for name, t in tensors.items()}
    require_same(source, theirs, ours)
    found = {names[name].name: tensor for name, tensor in tensors.items()}
    found = {name: each for name, each in found.items() if group(name) in GROUPS}
    _require_complete(source, must, found)
    return found


def by_loading(
    source: Path,
    model: keras.Model,
    load: Callable[[], None],
    *,
    optimizer: bool = True,
) -> Tensors:
    """The same, from a source that only Keras can load into the model.

    ``optimizer`` says whether the source has one. The model is left as it was.

    Raises:
        CheckpointMismatchError: Loading did not set all that the model needs.
    """
    found = set_by(ready(model), load)
    _require_complete(source, _required(model, optimizer=optimizer), found)
    return found


def set_by(live: Sequence[Leaf], load: Callable[[], None]) -> Tensors:
    """The values that ``load`` sets; the variables are left as they were.

    It is called twice, over different values: a variable that differs afterwards is one
    that it did not set.
    """
    with variables.kept(get_backend(), live):
        first, second = (_loaded_over(fill, live, load) for fill in (0, 1))
    return {
        name: value
        for name, value in first.items()
        if value.tobytes() == second[name].tobytes()
    }


def _names(model: keras.Model) -> dict[str, Leaf]:
    """The variables by the names that a source has for them."""
    ready(model)
    state = variables.leaves(model)
    paths = unique_names(leaf.path for leaf in state)
    return {
        name: leaf
        for name, leaf in zip(paths, state, strict=True)
        if group(leaf.name) in (*GROUPS, "metrics")
    }


def _required(model: keras.Model, *, optimizer: bool) -> dict[str, Leaf]:
    must = needed(model, ready(model))
    return {n: leaf for n, leaf in must.items() if optimizer or group(n) != "optimizer"}


def _require_complete(
    source: Path, must: Mapping[str, Leaf], found: Collection[str]
) -> None:
    lost = [f"missing: {leaf.path}" for name, leaf in must.items() if name not in found]
    if lost:
        raise mismatch(source, lost)


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
