"""What a loop was given by name, saved and restored in place.

One module per library; each kind of object tells its variables, which a checkpoint
holds in the backend's format, and all else that it is made of as plain values.
"""

import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from resilient.backends.arrays import check_dtype, check_names
from resilient.backends.base import Backend
from resilient.errors import message
from resilient.keras_internals import BACKEND
from resilient.objects.adapters.base import Kind, SavedObject, require_backend
from resilient.objects.adapters.kinds import kind_of
from resilient.serialization import Encoded
from resilient.state import variables
from resilient.state.variables import Leaf

if TYPE_CHECKING:
    from resilient.objects.makeup.makeup import Makeup

__all__ = ["Objects", "named_objects"]

KindOf = Callable[[str, Any], Kind | None]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_GRADIENTS = ".gradients"  # beside the objects; no object is called so


def named_objects(
    named: Mapping[str, Any], state: Any, kind_of_data: KindOf
) -> "tuple[Objects, Kind | None]":
    """What a loop was given.

    Args:
        named: Name to object.
        state: A pytree of JAX, or None.
        kind_of_data: Gives the kind of an object that data is drawn from, by its name
            and itself; None for any other.

    Returns:
        All of it, and what holds the pytree.

    Raises:
        TypeError: An object is of no kind that is known.
        NotSupportedError: It belongs to another backend than Keras runs on.
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
        TypeError: One is of no kind that is known.
        NotSupportedError: One belongs to another backend.
        ValueError: A name has other characters than a checkpoint takes.
    """

    def __init__(self, named: Mapping[str, Any]) -> None:
        for name in named:
            if not _NAME.fullmatch(name):
                raise ValueError(
                    message(
                        "This name cannot be kept in a checkpoint.",
                        received=repr(name),
                        hint="Use letters of ASCII, digits and '_'.",
                    )
                )
        # In an order that does not depend on the script's.
        self._objects = {name: kind_of(name, named[name]) for name in sorted(named)}
        for leaf in self.leaves():  # what cannot be saved is refused now
            check_names([leaf.name])
            check_dtype(leaf.path, leaf.dtype)

    @property
    def kinds(self) -> Encoded:
        """Name to what it is."""
        return {name: thing.kind for name, thing in self._objects.items()}

    def strategy(self) -> Any:
        """That of tf.distribute which the first of them was made under, if any was."""
        found = (thing.strategy() for thing in self._objects.values())
        return next((strategy for strategy in found if strategy is not None), None)

    def leaves(self) -> list[Leaf]:
        """Every variable of all of them, each once: the first that has it counts."""
        seen: set[int] = set()
        return [
            variables.leaf(group, index, path, target, of=name)
            for name, thing in self._objects.items()
            for group, index, path, target in thing.variables()
            if thing.immutable or variables.is_new(target, seen)
        ]

    def parts(self) -> list[tuple[str, Any]]:
        """What may have attributes that are in no variable, with names for people."""
        return [
            (f"{name}: {part}", value)
            for name, thing in self._objects.items()
            for part, value in thing.parts()
        ]

    def makeups(self) -> "dict[str, Makeup]":
        """What each compiled model trains with, by its name."""
        found = {name: thing.makeup() for name, thing in self._objects.items()}
        return {name: makeup for name, makeup in found.items() if makeup is not None}

    def capture(self, live: list[Leaf], arrays: dict[str, Any]) -> Encoded:
        """What is in no variable.

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
        """Make the variables that a checkpoint has and that are not made yet."""
        strategy = self.strategy()
        with nullcontext() if strategy is None else strategy.scope():
            for name, thing in self._objects.items():
                if name in saved.objects:
                    known = {_place(leaf): leaf.target for leaf in self.leaves()}
                    thing.build(saved.objects[name], known)

    def differences(self, saved: SavedObject) -> list[str]:
        """How a checkpoint's variables differ from the live ones; empty if equal."""
        live = self.leaves()
        groups = dict.fromkeys(
            ".".join(name.split(".")[:2])
            for name in (*(v["name"] for v in saved.layout), *(x.name for x in live))
        )
        found = variables.differences(saved.layout, live, groups=list(groups))
        for name, thing in self._objects.items():
            if name in saved.objects:
                found += thing.differences(name, saved.objects[name])
        return found

    def restore(self, backend: Backend, saved: SavedObject) -> None:
        """Set everything; ``differences`` found none."""
        pairs = list(zip(saved.layout, self.leaves(), strict=True))
        for name, thing in self._objects.items():
            mine = [pair for pair in pairs if pair[1].name.split(".")[1] == name]
            layout, live = [old for old, _ in mine], [leaf for _, leaf in mine]
            thing.assign(backend, layout, live, saved.tensors)
        for name, thing in self._objects.items():
            thing.restore(saved.objects[name], saved.tensors)
        if _GRADIENTS in saved.objects:
            from resilient.objects.adapters import torch_gradients

            gradients = saved.objects[_GRADIENTS]
            torch_gradients.restore(gradients, self.leaves(), saved.tensors)


def _place(leaf: Leaf) -> str:
    """Group, object and index; what comes after them may be another automatic name."""
    return ".".join(leaf.name.split(".")[:3])
