"""Saves and restores in place the objects that a loop was given by name.

One module per library. Each kind of object lists its variables, which a checkpoint
holds in the backend's format, and returns the rest of its state as plain values.
"""

from collections.abc import Collection, Mapping
from contextlib import nullcontext
from typing import Any

from resilient.backends.arrays import check_dtype, check_stored
from resilient.backends.base import Backend
from resilient.errors import message
from resilient.keras_internals import replicas
from resilient.objects.adapters import gradients
from resilient.objects.adapters.base import Kind, kind_of, require_backend
from resilient.objects.training_setup import TrainingSetup
from resilient.serialization import JSON, Encoded
from resilient.serialization.json_values import decode
from resilient.serialization.schema import taking
from resilient.serialization.state_dict import encoded_state
from resilient.state import layouts, variables
from resilient.state.comparison import Difference, line
from resilient.state.comparison import differences as fact_differences
from resilient.state.variables import Leaf, place

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
            check_dtype(leaf.path, leaf.dtype)
            check_stored({leaf.name: leaf.dtype})

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

    def only_made_by_script(self) -> dict[int | str, str]:
        """Metrics' variables, by id, and leaves of the pytree, as messages name them.

        A resume can restore them, but cannot create them.
        """
        leaves = [] if self.tree is None else self.tree.facts()[" leaves"]
        return {path: f"state{path}" for path in leaves} | {
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
        found: JSON = {_GRADIENTS: gradients.capture(live, arrays)}
        for name, thing in self._objects.items():
            given = thing.state(), arrays, f"objects.{name}"
            state = encoded_state(*given, type(thing.value).__name__, thing.known)
            built = thing.built(places)
            found[name] = {"class": thing.facts(), "state": state, **built}
        return found

    def build(self, saved: Any) -> None:
        """Build variables that a checkpoint has and this process lacks."""
        entries, strategy = self._entries(saved), self.strategy()
        # Optimizers last: for variables of models that are built here.
        names = sorted(entries, key=lambda name: name in self.models(), reverse=True)
        with nullcontext() if strategy is None else strategy.scope():
            for name in names:
                places = {place(leaf.name): leaf.target for leaf in self.leaves()}
                self._objects[name].build(entries[name], places)

    def _entries(self, saved: Any) -> dict[str, JSON]:
        """The entry of each object that a checkpoint has, by name."""
        objects = saved.run.objects
        return {name: objects[name] for name in self._objects if name in objects}

    def kind_differences(self, saved: JSON) -> list[Difference]:
        """How a checkpoint's ``kinds`` differ from the live ones."""
        found, live = [], self.kinds
        for name in {**live, **saved}:
            was, now = saved.get(name), live.get(name)
            if was != now:
                of = "run" if was and now else _OF.get(was or now, "run")
                text = line(f"objects: `{name}`", was, now)
                found.append(Difference(of, text, f"{of}.{name}"))
        return found

    def differences(self, saved: Any) -> list[Difference]:
        """How a checkpoint's objects differ from the live ones; empty if equal."""
        live, layout = self.leaves(), saved.run.variables
        names = [*(old["name"] for old in layout), *(leaf.name for leaf in live)]
        groups = dict.fromkeys(place(name).rpartition(".")[0] for name in names)
        lines = {g: layouts.differences(layout, live, groups=[g]) for g in groups}
        for name, entry in self._entries(saved).items():
            thing = self._objects[name]
            was, now = (
                {name + fact: value for fact, value in facts.items()}
                for facts in (entry["class"], thing.facts())
            )
            group = f"{_OF.get(thing.kind, 'run')}.{name}"
            lines[group] = [*lines.get(group, []), *fact_differences(was, now)]
        return [
            Difference(_OF.get(group.split(".")[0], "run"), each, group)
            for group, found in lines.items()
            for each in found
        ]

    def restore_variables(
        self, backend: Backend, saved: Any, fresh: Collection[str]
    ) -> None:
        """Set the variables, after comparing them.

        Args:
            backend: The backend's adapter.
            saved: The checkpoint's state of a loop.
            fresh: Groups of variables that start fresh.
        """
        held = [leaf for leaf in self._held(fresh) if leaf.slot[0] != "state"]
        variables.assign(backend, saved.run.variables, held, saved.tensors)

    def restore(self, saved: Any, fresh: Collection[str]) -> None:
        """Set everything that is not a variable; arguments as above."""
        tensors = saved.tensors
        with taking("the state of the objects"):
            for name, thing in self._objects.items():
                if f"{_OF.get(thing.kind)}.{name}" in fresh:
                    continue
                state = saved.run.objects[name]["state"]
                thing.load(decode(state, tensors, thing.known), tensors)
            live = self._held(fresh)
            gradients.restore(saved.run.objects[_GRADIENTS], live, tensors)

    def _held(self, fresh: Collection[str]) -> list[Leaf]:
        """The variables that do not start fresh."""
        new = tuple(f"{group}." for group in fresh)
        return [leaf for leaf in self.leaves() if not leaf.name.startswith(new)]
