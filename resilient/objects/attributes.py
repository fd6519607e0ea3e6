"""Follows what training changes in the user's data: attributes, and random generators.

Data holds gigabytes: large content is not read whole, but compared by the identity of
its items and a sample, and unknown objects count as made by the script until they are
seen to change.
"""

from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any

import numpy as np

from resilient.errors import warn_not_exact
from resilient.objects.changes import changes
from resilient.objects.kinds import WHOLE_BYTES
from resilient.objects.restore import plan
from resilient.objects.tree import Scope, Tree, paths
from resilient.serialization import JSON


class Attributes:
    """The attributes of some objects and of what they refer to, from now on.

    Args:
        objects: Name to object.
        elsewhere: Objects in them that are saved elsewhere, such as generators.
        asks: Whether to call ``state_dict`` on objects that have it.
    """

    def __init__(
        self,
        objects: Mapping[str, Any],
        elsewhere: Iterable[Any] = (),
        *,
        asks: bool = True,
    ) -> None:
        held = list(elsewhere)
        own = {id(each) for each in held}
        scope = Scope(own=lambda: own, limit=WHOLE_BYTES, asks=asks)
        self._tree: Tree = Tree(objects, scope=scope)
        self._held, self._warned = held, False

    def capture(self) -> JSON:
        """The changed ``objects``, larger ``arrays`` by name, and what is ``lost``."""
        arrays: dict[str, np.ndarray] = {}
        found = {"objects": changes(self._tree, arrays), "lost": self.uncaptured()}
        found["arrays"] = {name: np.array(array) for name, array in arrays.items()}
        return {name: item for name, item in found.items() if item}

    def changed(self) -> list[str]:
        """The paths of what has changed."""
        return [*paths(changes(self._tree, {})), *self.uncaptured()]

    def restore(self, state: JSON) -> None:
        """Return the objects to what ``capture`` returned."""
        restore = plan(self._tree, state.get("objects", {}), state.get("arrays", {}))
        problems = [*state.get("lost", ()), *restore()]
        if problems and not self._warned:
            self._warned = True
            warn_not_exact(
                "these attributes of the data changed before the checkpoint, and "
                "could not be restored",
                list(dict.fromkeys(problems)),
            )

    def uncaptured(self) -> list[str]:
        """What changed and cannot be saved, as ``"MyDataset.attribute (type)"``."""
        return list(self._tree.lost)


def generators(objects: Mapping[str, Any]) -> dict[str, Any]:
    """The random generators that objects draw from, by path, each once.

    They may be in attributes, in closures, or globals of the user's functions. Global
    generators of libraries are left out: every checkpoint has them.
    """
    tree = Tree(objects, scope=Scope(limit=0))
    found = (n for n in tree.homes.values() if n.kind in ("random", "generator"))
    return {node.home.replace(".cell_contents", ""): node.value for node in found}


def unclaimed(
    found: Mapping[str, Any], claimed: MutableMapping[int, Any]
) -> dict[str, Any]:
    """Claim the generators that no other data of this fit restores.

    Validation data is prepared after some training: generators that it shares with the
    training data were already restored, and drawn from since.
    """
    mine = {path: item for path, item in found.items() if id(item) not in claimed}
    claimed.update({id(item): item for item in mine.values()})
    return mine
