"""Captures what has changed in objects since training began, and restores it.

Only changes are kept: new configuration in the script (a different patience or file
name) is not overwritten. Restoring returns the objects to their captured state,
whatever this process has done to them since, so it may be done twice. What was changed
in place is restored in place, since others may refer to it; values shared by two
attributes are shared again.

It refuses nothing: ``uncaptured`` names what is not kept, and the function that
``plan`` returns names what could not be restored.
"""

from collections.abc import Callable, Mapping, Set
from typing import Any

import numpy as np

from resilient.errors import warn_not_exact
from resilient.objects import kinds
from resilient.objects.baseline import IMMUTABLE, Lost, Seen
from resilient.objects.beginning import Beginning
from resilient.objects.content import WRITTEN, Scope
from resilient.objects.put_back import PutBack
from resilient.objects.traversal import Slot
from resilient.serialization import JSON
from resilient.serialization.changes import Change, Changes, require_fit
from resilient.serialization.decoding import decode
from resilient.serialization.schema import well_formed


class Tracker:
    """Tracks objects and what they refer to, from now on.

    Args:
        objects: Name to object.
        scope: What is state.
        since: An earlier one, whose baseline takes precedence for objects that it
            knows.
    """

    def __init__(
        self,
        objects: Mapping[str, Any],
        scope: Scope | None = None,
        since: "Tracker | None" = None,
    ) -> None:
        earlier = since._beginning if since is not None else None
        self._beginning: Beginning = Beginning(objects, scope or Scope(), earlier)
        self._new: dict[str, Seen] = {}
        self._lost = dict.fromkeys(self._beginning.unknown)
        self._warned = False

    def capture(self) -> JSON:
        """The changes as JSON, with larger ``arrays`` by name."""
        changes: dict[str, Any] = {}
        arrays: dict[str, np.ndarray] = {}
        lost: list[str] = []
        live = self._beginning.visit()
        shared = self._beginning.shared(live)
        present = {id(part.value) for part in live.parts.values()}
        for path, part in live.parts.items():
            if path in live.homes:
                found = self._leads_to(part, "object", live.homes[path])
            elif path in shared:
                found = self._leads_to(part, "alias", shared[path])
            else:
                try:
                    found = self._change(part, arrays, present)
                except Lost:
                    lost.append(self._beginning.name(part))
                    continue
            if found is None:
                continue
            if isinstance(part.owner, tuple) and not _in_place(found):
                lost.append(self._beginning.name(part))
            else:
                changes[path] = {"of": part.of, "key": part.key, **found}
        self._lost.update(dict.fromkeys(lost))
        deleted = [
            path
            for path, part in self._beginning.first.parts.items()
            if part.of in live.owners and path not in live.parts
        ]
        orders = {
            home: list(owner)
            for home, owner in live.owners.items()
            if isinstance(owner, dict)
            and home in self._beginning.items
            and list(owner) != list(self._beginning.items[home])
        }
        kept = {"changes": changes, "arrays": arrays, "deleted": deleted, "lost": lost}
        return {name: item for name, item in {**kept, "orders": orders}.items() if item}

    def restore(self, state: JSON) -> None:
        """Return the objects to the state captured in ``state``."""
        arrays = state.get("arrays", {}) if isinstance(state, dict) else {}
        put_back = self.plan(state, arrays)
        problems = [*state.get("lost", ()), *put_back()]
        if problems and not self._warned:
            self._warned = True
            warn_not_exact(
                "these attributes of the data changed before the checkpoint, and "
                "could not be restored",
                problems,
            )

    def plan(self, state: JSON, arrays: Mapping[str, Any]) -> Callable[[], list[str]]:
        """Read a whole state; nothing changes until the returned function is called.

        Returns:
            A function that restores it, and returns the names of what could not be.

        Raises:
            NotKnownError: It refers to a missing class or function.
            MalformedError: This is not a captured state.
        """
        checked = well_formed(Changes, state, "the changes of objects")
        plains = {
            path: self._decoded(path, entry, arrays)
            for path, entry in checked.get("changes", {}).items()
        }
        return PutBack(self._beginning, state, plains).run

    def _decoded(self, path: str, entry: Change, arrays: Mapping[str, Any]) -> Any:
        plain = decode(entry["data"], arrays, self._beginning.known(path))
        require_fit(path, entry, plain)
        return plain

    def uncaptured(self) -> list[str]:
        """What no capture holds, as ``"MyDataset.attribute (type)"``."""
        return list(self._lost)

    def _change(
        self, part: Slot, arrays: dict[str, np.ndarray], present: Set[int]
    ) -> JSON | None:
        seen = self._beginning.seen.get(part.path)
        if kinds.names_a_place(part.owner, part.key):
            if seen is not None and seen.change(part.value, {}) is None:
                return None
            raise Lost
        if seen is None:
            if part.path not in self._new:
                self._new[part.path] = self._beginning.nothing(part.path)
            seen = self._new[part.path]
        first = seen.value()
        if first is part.value:
            return seen.change(part.value, arrays)
        place = self._beginning.place(part.value)
        elsewhere = id(first) in present and not isinstance(first, IMMUTABLE)
        if elsewhere or place is not None or part.path in self._beginning.were_shared:
            # Equal or not, it is a different object from the one others refer to.
            seen = self._beginning.nothing(part.path)
        found = seen.change(part.value, arrays)
        return found if found is None or place is None else {**found, "was": place}

    def _leads_to(self, part: Slot, kind: str, where: str) -> JSON | None:
        """The record of a place whose object is at home elsewhere, or an alias."""
        if part.path == where or part.value is self._beginning.object(part.path):
            return None
        return {"kind": kind, "data": where}


def _in_place(found: JSON) -> bool:
    return found["kind"] in WRITTEN or bool(found.get("same"))
