"""What a script made, as it was, and which of it training has changed.

What the script made is configuration: the script will make it the same. What differs
from that later is state: it is saved, and restored in place, into the same objects.
Containers, arrays and objects of known plain classes are made anew where training made
them; other objects that training made are named. Nothing is called, and no name in a
checkpoint is looked up anywhere.
"""

from typing import Any

from resilient import keras_internals
from resilient.keras_internals import BACKEND
from resilient.objects import kinds, leaves, walk
from resilient.objects.parts import Node, take, touched
from resilient.objects.walk import STATE, Scope, Walk, is_below, path_of
from resilient.serialization import Entries

__all__ = ["Scope", "Tree", "is_below", "paths"]


class Tree(Walk):
    """Objects, and everything that they refer to, as they were at one time.

    Attributes:
        moving: Names of what tracing itself changes, in each process.
    """

    moving: frozenset[str] = frozenset()
    _watched: list[Node] | None = None

    def begin_steps(self) -> None:
        """The first step is about to be traced, with what it reads now."""
        nodes = [n for n in self.watched() if self.is_baked(n) and not n.outside]
        take([node for node in nodes if node.parts is not None], self.scope.hidden)
        for node in nodes:
            if node.parts is None and not leaves.is_fixed(node.value, node.kind):
                self._read(node, STATE)

    def take_built(self) -> None:
        """What Keras has made meanwhile in objects of its own is no change."""
        built = [node for node in self._unbuilt if walk.is_built(node.value)]
        take(built, self.scope.hidden)
        if built:
            self._unbuilt = [node for node in self._unbuilt if node not in built]

    def watched(self) -> list[Node]:
        """The objects that may hold state."""
        if self._watched is None:
            self._watched = [
                node
                for node in self.homes.values()
                if node.state and node.kind != "opaque"
            ]
        return self._watched

    def differing(self) -> list[Node]:
        """Those that may hold something else now."""
        return touched(self.watched())

    def restorable(self, *, only_step: bool = False) -> list[Node]:
        """Those that a restore may write to.

        Args:
            only_step: Only what nothing but the training step reads.
        """
        nodes = [n for n in self.watched() if n.outside or not self.is_baked(n)]
        return [node for node in nodes if not (only_step and node.outside)]

    def is_baked(self, node: Node) -> bool:
        """Whether a traced step has read it once and for all."""
        if not (self.scope.traced and node.in_step):
            return False
        return node.kind != "variable" or BACKEND == "jax"

    def fills(self, node: Node) -> bool:
        """Whether it is a cache or log of a layer, say, which fills with each trace."""
        models = (
            n for n, x in self._step.items() if keras_internals.is_trainer(type(x))
        )
        return not any(is_below(node.home, name) for name in (*models, *self._objects))

    def lacks(self, entries: Entries) -> bool:
        """Whether a checkpoint has objects that are not there yet."""
        return any("made" not in x and h not in self.homes for h, x in entries.items())

    def is_handle(self, before: Any, value: Any) -> bool:
        """Whether data opened something on demand, or opened it anew."""
        if not self.scope.is_limited:
            return False
        if before is not None and type(before) is not type(value):
            return False
        if walk.is_value(value) or walk.is_transparent(value):
            return False
        if kinds.is_code(value) or kinds.is_iterator(value) or id(value) in self.nodes:
            return False
        return self._kind_of(value) in ("opaque", "file", "memory")

    def learn(self, *, by_step: bool = False) -> None:
        """Take in what was made since, such as by ``on_train_begin``.

        Every attempt makes it, so that it can be restored; all of it is state.

        Args:
            by_step: Only what a training step made, which a resume tries first.
        """
        self._learning, self._watched = True, None
        nodes = [n for n in self.homes.values() if n.parts is not None]
        if by_step:
            nodes = [node for node in nodes if node.in_step]
        if found := touched(nodes, muted=True):
            self.own = self.scope.own()
            self._visit_inside(found)


def paths(entries: Entries) -> list[str]:
    """Where something changed."""
    found: dict[str, None] = {}
    for home, entry in entries.items():
        names = [path_of(home, name) for name in entry.get("attributes", ())]
        found |= {n.removesuffix(walk.CONTENTS): None for n in names or [home]}
    return list(found)
