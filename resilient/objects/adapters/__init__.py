"""Saves and restores in place the objects that a loop was given by name.

One module per library. Each kind of object lists its variables, which a checkpoint
holds in the backend's format, and returns the rest of its state as plain values.
"""

from collections.abc import Collection, Mapping
from contextlib import nullcontext
from typing import Any

from resilient.backends.arrays import check_dtype, check_names
from resilient.backends.base import Backend
from resilient.errors import message
from resilient.keras_internals import BACKEND
from resilient.objects.adapters.base import Kind, SavedObjects, kind_of, require_backend
from resilient.objects.training_setup import TrainingSetup
from resilient.serialization import JSON, Encoded
from resilient.serialization.schema import MalformedError, well_formed
from resilient.state import layouts, replicas, variables
from resilient.state.difference import Difference, line
from resilient.state.difference import differences as fact_differences
from resilient.state.place import place
from resilient.state.variables import Leaf

__all__ = ["Objects"]

# The name in ``allow`` for a changed kind, and for variables of a changed group.
_OF = {
    "Keras metric": "metrics",
    "Keras optimizer": "optimizer",
    "PyTorch optimizer": "optimizer",
    "metrics": "metrics",
    "optimizer": "optimizer",
}
_GRADIENTS = ".gradients"  # beside the objects: not a valid object name


class Objects:
    """All objects of one loop.

    Args:
        named: Name to object.
        state: A pytree of JAX, or None.

    Attributes:
        tree: The object ``state`` of the pytree, if any. Its variables are values, so
            that two may be the same object, and steps replace them.

    Raises:
        TypeError: An object is of an unknown kind.
        NotSupportedError: An object belongs to another backend.
        ValueError: A name has characters that a checkpoint does not allow.
    """

    def __init__(self, named: Mapping[str, Any], state: Any = None) -> None:
        self.tree: Kind | None = None
        self._fingerprints: dict[str, JSON] = {}
        if state is not None:
            require_backend("jax", "state", state)
            from resilient.objects.adapters.jax_objects import PytreeKind

            self.tree = PytreeKind(state)
            named = {**named, "state": self.tree}
        for name in named:
            if not (name.isascii() and name.isidentifier()):
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
        models = self.models().values()
        held = (*(leaf.target for leaf in self.leaves()), *models)
        found = map(replicas.strategy_of, held)
        return next((strategy for strategy in found if strategy is not None), None)

    def leaves(self) -> list[Leaf]:
        """Every variable once, under the first object that holds it."""
        seen: set[int] = set()
        return [
            variables.leaf(group, index, path, target, of=name)
            for name, thing in self._objects.items()
            for group, index, path, target in thing.variables()
            if thing is self.tree or variables.is_new(target, seen)
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

    def models(self) -> dict[str, Any]:
        """The Keras models and layers, by name."""
        kind = "Keras layer"
        return {n: x.value for n, x in self._objects.items() if x.kind == kind}

    def setups(self) -> dict[str, TrainingSetup]:
        """The training setup of each compiled model, by name."""
        models = self.models().items()
        return {n: TrainingSetup(x) for n, x in models if getattr(x, "compiled", False)}

    def fingerprints(self) -> JSON:
        """The configuration of each Keras model, layer or optimizer, by name.

        A model has one from when it is built, and later changes do not count.
        """
        for name, thing in self._objects.items():
            if name not in self._fingerprints and (found := thing.fingerprint()):
                self._fingerprints[name] = found
        return dict(self._fingerprints)

    def capture(self, live: list[Leaf], arrays: dict[str, Any]) -> Encoded:
        """All state outside variables.

        Args:
            live: What ``leaves`` returned.
            arrays: Receives the larger arrays.
        """
        places = {id(leaf.target): place(leaf.name) for leaf in live}
        found = {
            name: {
                "class": thing.facts(),
                "state": thing.capture(arrays, f"objects.{name}"),
                **thing.built(places),
            }
            for name, thing in self._objects.items()
        }
        if BACKEND != "torch":
            return found
        from resilient.objects.adapters import torch_objects

        return {**found, _GRADIENTS: torch_objects.capture_gradients(live, arrays)}

    def build(self, saved: SavedObjects) -> None:
        """Build variables that a checkpoint has and this process lacks.

        Raises:
            MalformedError: It does not hold what ``capture`` returned.
        """
        entries, strategy = self._entries(saved), self.strategy()
        # Optimizers last: for variables of models that are built here.
        names = sorted(entries, key=lambda name: name in self.models(), reverse=True)
        with nullcontext() if strategy is None else strategy.scope():
            for name in names:
                places = {place(leaf.name): leaf.target for leaf in self.leaves()}
                self._objects[name].build(entries[name], places)

    def _entries(self, saved: SavedObjects) -> dict[str, JSON]:
        """The entry of each object that a checkpoint has, by name."""
        return {
            name: well_formed(JSON, saved.objects[name] or {}, f"the object {name}")
            for name in self._objects
            if name in saved.objects
        }

    def kind_differences(self, saved: JSON) -> list[Difference]:
        """How a checkpoint's ``kinds`` differ from the live ones."""
        found, live = [], self.kinds
        for name in {**live, **saved}:
            was, now = saved.get(name), live.get(name)
            of, text = "run", line(f"objects: `{name}`", was, now)
            if was is None or now is None:
                where = "not" if was is None else "only"
                of = _OF.get(was or now, "run")
                text = f"objects: `{name}` is {where} in the checkpoint"
            if was != now:
                found.append(Difference(of, text, f"{of}.{name}"))
        return found

    def differences(self, saved: SavedObjects) -> list[Difference]:
        """How a checkpoint's objects differ from the live ones; empty if equal."""
        live = self.leaves()
        groups = dict.fromkeys(
            place(name).rpartition(".")[0]
            for name in (*(v["name"] for v in saved.layout), *(x.name for x in live))
        )
        lines = {g: layouts.differences(saved.layout, live, groups=[g]) for g in groups}
        for name, entry in self._entries(saved).items():
            thing = self._objects[name]
            was, now = _named(name, entry.get("class")), _named(name, thing.facts())
            group = f"{_OF.get(thing.kind, 'run')}.{name}"
            lines[group] = [*lines.get(group, []), *fact_differences(was, now)]
        return [
            Difference(_OF.get(group.split(".")[0], "run"), each, group)
            for group, found in lines.items()
            for each in found
        ]

    def restore(
        self, backend: Backend, saved: SavedObjects, fresh: Collection[str]
    ) -> None:
        """Set everything, after comparing it.

        Args:
            backend: The backend's adapter.
            saved: What to set.
            fresh: Groups of variables that start fresh.
        """
        entries = self._entries(saved)
        old = {
            name: thing
            for name, thing in self._objects.items()
            if f"{_OF.get(thing.kind)}.{name}" not in fresh
        }
        if lacking := old.keys() - entries.keys():
            raise MalformedError(f"nothing of the object {min(lacking)}")
        new = tuple(f"{group}." for group in fresh)
        live = [leaf for leaf in self.leaves() if not leaf.name.startswith(new)]
        if self.tree is not None:
            live = [leaf for leaf in live if leaf.slot[0] != "state"]
        variables.assign(backend, saved.layout, live, saved.tensors)
        for name, thing in old.items():
            thing.restore(entries[name].get("state"), saved.tensors)
        if _GRADIENTS in saved.objects and BACKEND == "torch":
            from resilient.objects.adapters import torch_objects

            torch_objects.restore_gradients(
                saved.objects[_GRADIENTS], live, saved.tensors
            )


def _named(name: str, facts: Any) -> dict[str, Any]:
    """The facts of an object, by names for messages."""
    each = facts if isinstance(facts, dict) else {"": facts}
    return {name + fact: value for fact, value in each.items()}
