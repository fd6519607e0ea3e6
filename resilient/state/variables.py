"""Lists a model's state: every tensor that a training step may change.

There are four groups, named as in Keras (trainable, non_trainable, optimizer, metrics),
and ``extra``: attributes of the model or a layer that are in none of them (a second
optimizer, seed generators, raw backend variables, torch buffers).

Weights and optimizer are the same in all replicas of a model: one copy is saved, and
restored to all. State that a replica computes from its part of a batch (BatchNorm
statistics, seeds, metrics) is its own, and is named by the replica's global number, so
a resume may place replicas in different processes.

Tensors are matched by structure (group, order, shape, dtype). Paths are only for
messages: Keras's automatic names differ from one process to the next.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import keras

from resilient import keras_internals
from resilient.backends.base import Backend
from resilient.errors import message
from resilient.keras_internals import replicas
from resilient.once import once
from resilient.serialization import JSON

GROUPS = ("trainable", "non_trainable", "optimizer", "metrics")
LOOP = "loop"  # the only group whose variables a custom loop names itself
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")
_PLACE = re.compile(r".*?\.\d+(?=\.)")

SHARED = ("trainable", "optimizer")  # groups that are equal in all replicas
# Suffix of a tensor's name -> its copies in this process, all equal.
Copies = dict[str, list[Any]]

Saved = Sequence[JSON]  # the variables in a checkpoint, as ``Leaf.to_json``


@dataclass(frozen=True)
class Leaf:
    """One variable of the state: a tensor, or one per replica.

    Attributes:
        name: A unique name of letters, digits, ``_``, ``-`` and ``.``.
        path: Keras's path, or the attribute's, for messages.
        shape: Static shape.
        dtype: Name of the dtype.
        target: The live variable or buffer.
        copies: Suffix of ``name`` for each tensor of this process -> variables that
            hold it.
        slot: Group and index under which JAX keeps the value while ``fit`` runs.
    """

    name: str
    path: str
    shape: tuple[int, ...]
    dtype: str
    target: Any
    copies: Copies
    slot: tuple[str, int]

    def to_json(self) -> JSON:
        return _json(self.name, self.path, self.shape, self.dtype)


# Group, index in it, path, and the variable.
Variable = tuple[str, int, str, Any]


def leaves(model: keras.Model) -> list[Leaf]:
    """Every tensor of the model's state once, in a stable order."""
    return [leaf(*variable) for variable in variables_of(model)]


def variables_of(model: Any) -> Iterator[Variable]:
    """Every variable of a model or a layer once: group, index, path and variable."""
    seen = set[int]()
    for group in GROUPS:
        for index, variable in enumerate(_group(model, group)):
            if is_new(variable, seen):  # layers repeat those of their layers
                yield group, index, variable.path, variable
    extras = [extra for extra in _extras(model) if is_new(extra[1], seen)]
    for index, (path, target) in enumerate(extras):
        yield "extra", index, path, target


def listed(live: Iterable[Leaf]) -> list[JSON]:
    """These, as in a checkpoint."""
    return [leaf.to_json() for leaf in live]


def leaves_of(variables: Iterable[Any]) -> list[Leaf]:
    """The tensors of these variables once each, in order.

    Raises:
        TypeError: A variable cannot be assigned to.
    """
    seen = set[int]()
    return [
        leaf(LOOP, index, _path(index, each), each)
        for index, each in enumerate(variables)
        if is_new(each, seen)
    ]


def _path(index: int, variable: Any) -> str:
    if not hasattr(variable, "assign") and not hasattr(variable, "copy_"):
        raise TypeError(
            message(
                "Only variables can be saved and restored here.",
                received=f"{type(variable).__name__} at position {index}",
                hint="Pass Keras variables or variables of the backend.",
            )
        )
    # torch parameters have no name.
    names = (getattr(variable, name, None) for name in ("path", "name"))
    return next(filter(None, names), f"variable {index}")


def place(name: str) -> str:
    """Group, a loop's object, and index; Keras may number the rest differently."""
    found = _PLACE.match(name)
    return found[0] if found else name


def matched(saved: Saved, live: Iterable[Leaf]) -> list[tuple[JSON, Leaf]]:
    """The variables that both have: as in a checkpoint's list, and live."""
    theirs = {place(old["name"]): old for old in saved}
    pairs = ((theirs.get(place(leaf.name)), leaf) for leaf in live)
    return [(old, leaf) for old, leaf in pairs if old is not None]


def live_tensors(model: keras.Model, state: list[Leaf]) -> dict[str, Any]:
    """The current values of ``state`` in this process, by name.

    On JAX ``fit`` holds them outside the variables, which it updates only now and then;
    reading them there avoids an update.
    """
    held: Mapping[str, Any] = getattr(model, "_jax_state", None) or {}
    if getattr(model, "_jax_state_synced", True):
        held = {}
    found = tensors(state)
    for leaf in state:
        group, index = leaf.slot
        values = held.get(f"{group}_variables")
        if values is not None and index < len(values):  # not for later additions
            found[leaf.name] = values[index]
    return found


def ids(state: Sequence[Leaf]) -> set[int]:
    """The ids of variables, and of the tensors inside them."""
    found = {id(leaf.target) for leaf in state}
    return found | {id(getattr(x.target, "_value", x.target)) for x in state}


def tensors(state: Sequence[Leaf]) -> dict[str, Any]:
    """The holder of each tensor of ``state`` in this process, by name."""
    return {
        leaf.name + suffix: copies[0]
        for leaf in state
        for suffix, copies in leaf.copies.items()
    }


def assign(
    backend: Backend, saved: Saved, live: Sequence[Leaf], tensors: Mapping[str, Any]
) -> None:
    """Set every copy of live variables that all are in a checkpoint's list.

    Args:
        backend: The adapter.
        saved: The list.
        live: The variables.
        tensors: The checkpoint's, by name.

    Raises:
        CheckpointMismatchError: One does not fit; nothing was changed.
    """
    pairs = [
        (copy, tensors[old["name"] + suffix])
        for (old, _), leaf in zip(matched(saved, live), live, strict=True)
        for suffix, copies in leaf.copies.items()
        for copy in copies
    ]
    for do in (backend.require_like, backend.assign):
        for pair in pairs:
            do(*pair)


@contextlib.contextmanager
def kept(backend: Backend, live: Sequence[Leaf]) -> Iterator[None]:
    """Reset these variables on exit."""
    before = dict(backend.snapshot(tensors(live)).arrays)
    try:
        yield
    finally:
        assign(backend, listed(live), live, before)


def _group(model: keras.Model, group: str) -> list[Any]:
    if group == "optimizer":
        optimizer = getattr(model, "optimizer", None)  # none before compile
        return [] if optimizer is None else list(optimizer.variables)
    return list(getattr(model, f"{group}_variables"))


def leaf(group: str, index: int, path: str, target: Any, *, of: str = "") -> Leaf:
    """The leaf of a variable.

    Args:
        group: One of ``GROUPS``, ``"extra"`` or ``LOOP``.
        index: Its index in the group.
        path: Its path, for messages.
        target: The variable or backend tensor.
        of: Name of the object that it belongs to, if there are several.
    """
    dtype = target.dtype
    return Leaf(
        name=_name(group, index, path, of),
        path=path,
        shape=tuple(map(int, target.shape)),
        dtype=(getattr(dtype, "name", None) or str(dtype)).removeprefix("torch."),
        target=target,
        copies=_copies(group, target),
        slot=(group, index),
    )


def _copies(group: str, target: Any) -> Copies:
    """The copies in this process of a Keras or backend variable.

    Args:
        group: The group of state that it belongs to, see ``variables``.
        target: The variable.
    """
    found = _components(target)
    if not found:
        return {"": [target]}
    if group in SHARED and not replicas.is_read_by_replica(target):
        return {"": list(found.values())}
    return {f".replica_{number}": [each] for number, each in found.items()}


def _components(target: Any) -> dict[int, Any]:
    """Replica number -> its copy; empty with a single replica."""
    if keras_internals.BACKEND == "tensorflow":
        return replicas.replica_components(target)
    several = keras_internals.BACKEND == "torch" and replicas.ranks() > 1
    if several and replicas.count_under(None) > 1:
        return _of_this_rank(target)
    return {}


def _of_this_rank(target: Any) -> dict[int, Any]:
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor

    if isinstance(getattr(target, "_value", target), DTensor):
        return {}  # ranks hold shards of one value
    parallel = keras.distribution.distribution()
    # Ranks that share one replica have equal copies.
    return {dist.get_rank() if parallel is None else parallel.data_shard_id: target}


# Each save has it, and thousands of new objects make Python collect garbage.
@lru_cache(1 << 16)
def _json(name: str, path: str, shape: tuple[int, ...], dtype: str) -> dict[str, Any]:
    return {"name": name, "path": path, "shape": list(shape), "dtype": dtype}


@lru_cache(1 << 16)
def _name(group: str, index: int, path: str, of: str) -> str:
    safe = _UNSAFE.sub("_", path.replace("/", "."))
    first = f"{group}.{of}" if of else group
    return f"{first}.{index:04d}.{safe}"


def is_new(variable: Any, seen: set[int]) -> bool:
    """Whether neither a variable nor its backend tensor is in ``seen``."""
    # JAX arrays are immutable: two variables may temporarily hold the same one.
    mutable = keras_internals.BACKEND != "jax"
    tensor = getattr(variable, "_value", None) if mutable else None
    known = id(variable) in seen or (tensor is not None and id(tensor) in seen)
    seen.add(id(variable))
    if tensor is not None:
        seen.add(id(tensor))
    return not known


def _extras(model: keras.Model) -> Iterator[tuple[str, Any]]:
    """Variables in attributes of the model or its layers."""
    for number, layer in enumerate(model._flatten_layers()):
        prefix = "" if layer is model else f"layer{number}_{type(layer).__name__}/"
        held = {
            name: found
            for name, value in vars(layer).items()
            if _holds(type(value)) and (found := _variables(value))
        }
        # Private ones last: public names say more than TensorFlow's tracking.
        for name in sorted(held, key=lambda name: (name.startswith("_"), name)):
            for variable in held[name]:
                yield f"{prefix}{name}", variable
        if keras_internals.BACKEND == "torch":
            # Wrapped torch modules: buffers are not Keras variables, and
            # model.named_buffers() is empty since layers are not torch submodules.
            for kind in (layer.named_buffers, layer.named_parameters):
                for name, tensor in kind():
                    yield f"{prefix}{name}", tensor


# Types that are or may hold a variable. Training waits while attributes are inspected,
# and most are neither.
_OWN = (keras.optimizers.Optimizer, keras.metrics.Metric)
_CONTAINERS = (list, tuple, dict, keras.losses.Loss)
_HOLDING = (
    *(*_OWN, *_CONTAINERS, keras.Variable, keras.random.SeedGenerator),
    *keras_internals.backend_variables(),
)


@once
def _holds(cls: type) -> bool:
    return issubclass(cls, _HOLDING)


def _variables(value: Any, within: frozenset[int] = frozenset()) -> list[Any]:
    """The variables in a value of one of these types."""
    if isinstance(value, keras.optimizers.Optimizer) and not value.built:
        return []
    if isinstance(value, _OWN):
        return list(value.variables)
    if isinstance(value, keras.random.SeedGenerator):
        return [value.state]
    if not isinstance(value, _CONTAINERS):
        return [value]
    if id(value) in within:  # it holds itself
        return []
    within |= {id(value)}
    items = vars(value) if isinstance(value, keras.losses.Loss) else value
    items = items.values() if isinstance(items, dict) else items
    holding = [item for item in items if _holds(type(item))]
    return [v for item in holding for v in _variables(item, within)]
