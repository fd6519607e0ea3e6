"""Saves and restores in place the objects that a loop was given by name.

One module per library. Each kind of object lists its variables, which a checkpoint
holds in the backend's format, and returns the rest of its state as plain values.
"""

import re
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from resilient.backends.arrays import check_dtype, check_names
from resilient.backends.base import Backend
from resilient.errors import message
from resilient.keras_internals import BACKEND
from resilient.objects.adapters.base import Kind, SavedObject, require_backend
from resilient.objects.adapters.find_kind import kind_of
from resilient.serialization import JSON, Encoded
from resilient.serialization.schema import MalformedError, well_formed
from resilient.state import layouts, variables
from resilient.state.difference import Difference, line
from resilient.state.variables import Leaf

if TYPE_CHECKING:
    from resilient.objects.training_setup import TrainingSetup

__all__ = ["Objects", "named_objects"]

KindOf = Callable[[str, Any], Kind | None]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# The name in ``allow`` for a changed kind.
_OF = {
    "Keras metric": "metrics",
    "Keras optimizer": "optimizer",
    "PyTorch optimizer": "optimizer",
}
_GRADIENTS = ".gradients"  # beside the objects: not a valid object name


def named_objects(
    named: Mapping[str, Any], state: Any, kind_of_data: KindOf
) -> "tuple[Objects, Kind | None]":
    """Wrap the objects of a loop.

    Args:
        named: Name to object.
        state: A pytree of JAX, or None.
        kind_of_data: Returns the kind of a data object, given its name and itself; None
            for other objects.

    Returns:
        All objects, and the one that holds the pytree.

    Raises:
        TypeError: An object is of an unknown kind.
        NotSupportedError: It belongs to a backend other than Keras's.
    """
    named = {name: kind_of_data(name, x) or x for name, x in named.items()}
    if state is None:
        return Objects(named), None
    require_backend("jax", "state", state)
    from resilient.objects.adapters.jax_objects import PytreeKind

    tree = PytreeKind(state)
    return Objects({**named, "state": tree}), tree


class Objects:
    """All objects of one loop.

    Args:
        named: Name to object.

    Raises:
        TypeError: An object is of an unknown kind.
        NotSupportedError: An object belongs to another backend.
        ValueError: A name has characters that a checkpoint does not allow.
    """

    def __init__(self, named: Mapping[str, Any]) -> None:
        for name in named:
            if not _NAME.fullmatch(name):
                raise ValueError(
                    message(
                        "This name cannot be used in a checkpoint.",
                        received=repr(name),
                        hint="Use ASCII letters, digits and '_'.",
                    )
                )
        # Sorted, so that the order does not depend on the script.
        self._objects = {name: kind_of(name, named[name]) for name in sorted(named)}
        for leaf in self.leaves():  # refuse now what cannot be saved
            check_names([leaf.name])
            check_dtype(leaf.path, leaf.dtype)

    @property
    def kinds(self) -> Encoded:
        """Name to kind."""
        return {name: thing.kind for name, thing in self._objects.items()}

    def strategy(self) -> Any:
        """The tf.distribute strategy of the first object that has one, if any."""
        found = (thing.strategy() for thing in self._objects.values())
        return next((strategy for strategy in found if strategy is not None), None)

    @property
    def immutable(self) -> bool:
        """Whether any object has values in place of variables: steps replace them."""
        return any(thing.immutable for thing in self._objects.values())

    def leaves(self) -> list[Leaf]:
        """Every variable once, under the first object that holds it."""
        seen: set[int] = set()
        return [
            variables.leaf(group, index, path, target, of=name)
            for name, thing in self._objects.items()
            for group, index, path, target in thing.variables()
            if thing.immutable or variables.is_new(target, seen)
        ]

    def metrics(self) -> dict[int, str]:
        """Id of each variable of a metric to the object that has it, and its path."""
        return {
            id(target): f"{name}: {path}"
            for name, thing in self._objects.items()
            for group, _, path, target in thing.variables()
            if group == "metrics"
        }

    def parts(self) -> list[tuple[str, Any]]:
        """Objects with attributes outside variables, with names for messages."""
        return [
            (f"{name}: {part}", value)
            for name, thing in self._objects.items()
            for part, value in thing.parts()
        ]

    def setups(self) -> "dict[str, TrainingSetup]":
        """The training setup of each compiled model, by name."""
        found = {name: thing.setup() for name, thing in self._objects.items()}
        return {name: setup for name, setup in found.items() if setup is not None}

    def models(self) -> dict[str, Any]:
        """The Keras models and layers, by name."""
        kind = "Keras layer"
        return {n: x.value for n, x in self._objects.items() if x.kind == kind}

    def fingerprints(self) -> JSON:
        """The configuration of each Keras model, layer or optimizer, by name."""
        found = {name: thing.fingerprint() for name, thing in self._objects.items()}
        return {name: facts for name, facts in found.items() if facts is not None}

    def capture(self, live: list[Leaf], arrays: dict[str, Any]) -> Encoded:
        """All state outside variables.

        Args:
            live: What ``leaves`` returned.
            arrays: Receives the larger arrays.
        """
        known = {id(leaf.target): _place(leaf) for leaf in live}
        found = {
            name: thing.capture(arrays, f"objects.{index}", known)
            for index, (name, thing) in enumerate(self._objects.items())
        }
        if BACKEND != "torch":
            return found
        from resilient.objects.adapters import torch_gradients

        return {**found, _GRADIENTS: torch_gradients.capture(live, arrays)}

    def build(self, saved: SavedObject) -> None:
        """Build variables that a checkpoint has and this process lacks.

        Raises:
            MalformedError: It does not hold what ``capture`` returned.
        """
        self._require_well_formed(saved)
        strategy = self.strategy()
        with nullcontext() if strategy is None else strategy.scope():
            for name, thing in self._objects.items():
                if name in saved.objects:
                    known = {_place(leaf): leaf.target for leaf in self.leaves()}
                    thing.build(saved.objects[name], known)

    def _require_well_formed(self, saved: SavedObject) -> None:
        schemas = {name: thing.schema for name, thing in self._objects.items()}
        for name, schema in schemas.items():
            if name in saved.objects:
                well_formed(schema, saved.objects[name], f"the object {name}")

    def kind_differences(self, saved: JSON) -> list[Difference]:
        """How a checkpoint's ``kinds`` differ from the live ones."""
        found, live = [], self.kinds
        for name in (*live, *(name for name in saved if name not in live)):
            was, now = saved.get(name), live.get(name)
            where = "not" if was is None else "only"
            text = f"objects: `{name}` is {where} in the checkpoint"
            of = _OF.get(str(was or now), "run")
            if was is not None and now is not None:
                text, of = line(f"objects: `{name}`", was, now), "run"
            if was != now:
                found.append(Difference(of, text, _group(of, name)))
        return found

    def differences(self, saved: SavedObject) -> list[Difference]:
        """How a checkpoint's objects differ from the live ones; empty if equal."""
        live = self.leaves()
        groups = dict.fromkeys(
            ".".join(name.split(".")[:2])
            for name in (*(v["name"] for v in saved.layout), *(x.name for x in live))
        )
        found = []
        for group in groups:
            of = group.split(".")[0]
            of = of if of in _OF.values() else "run"
            lines = layouts.differences(saved.layout, live, groups=[group])
            found += [Difference(of, each, group) for each in lines]
        for name, thing in self._objects.items():
            if name in saved.objects:
                of = _OF.get(thing.kind, "run")
                lines = thing.differences(name, saved.objects[name])
                found += [Difference(of, each, _group(of, name)) for each in lines]
        return found

    def restore(
        self, backend: Backend, saved: SavedObject, fresh: Collection[str]
    ) -> None:
        """Set everything, after comparing it.

        Args:
            backend: The backend's adapter.
            saved: What to set.
            fresh: Groups of variables that start fresh.
        """
        old = {
            name: thing
            for name, thing in self._objects.items()
            if _group(_OF.get(thing.kind, ""), name) not in fresh
        }
        if lacking := old.keys() - saved.objects.keys():
            raise MalformedError(f"nothing of the object {min(lacking)}")
        new = tuple(f"{group}." for group in fresh)
        places = [
            i for i, v in enumerate(saved.layout) if not v["name"].startswith(new)
        ]
        leaves = [leaf for leaf in self.leaves() if not leaf.name.startswith(new)]
        pairs = list(zip(places, leaves, strict=True))
        for name, thing in self._objects.items():
            mine = [pair for pair in pairs if pair[1].name.split(".")[1] == name]
            layout, live = (
                [saved.layout[i] for i, _ in mine],
                [leaf for _, leaf in mine],
            )
            thing.assign(backend, layout, live, saved.tensors)
        for name, thing in old.items():
            thing.restore(saved.objects[name], saved.tensors)
        if _GRADIENTS in saved.objects and BACKEND == "torch":
            from resilient.objects.adapters import torch_gradients

            torch_gradients.restore(saved.objects[_GRADIENTS], pairs, saved.tensors)


def _group(of: str, name: str) -> str:
    """The variables of the object ``name`` that may start fresh."""
    return f"{of}.{name}" if of in _OF.values() else ""


def _place(leaf: Leaf) -> str:
    """Group, object and index. The rest of a name may be numbered differently."""
    return ".".join(leaf.name.split(".")[:3])
