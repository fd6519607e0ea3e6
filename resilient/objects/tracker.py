"""What changed in objects since training began, and putting that back.

Only changes are kept: what the script configures anew (another patience, another file
name) is not overwritten. Restoring makes the objects what they were when captured,
whatever this process did to them since, so it may be done twice. What was changed in
place is restored in place, since others may refer to it; what two attributes share is
shared again.

Refuses nothing: what is not kept is named by ``uncaptured``, and what could not be put
back by what ``plan`` gives.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from resilient.errors import warn_not_exact
from resilient.objects.baseline import Lost, Seen
from resilient.objects.content import WRITTEN, Scope, made, read, write
from resilient.objects.in_place import assign_in_place
from resilient.objects.traversal import Part, Visit, delete, put
from resilient.serialization import JSON
from resilient.serialization.json_values import decode

_IMMUTABLE = (int, float, complex, str, bytes, tuple, frozenset, type(None))
_GONE = object()  # in the place of what is not there


class Tracker:
    """Objects and what they refer to, as they were when this was made.

    Args:
        objects: Name to object.
        scope: What is state.
        since: An earlier one, whose beginning counts for the objects that it knows.
    """

    def __init__(
        self,
        objects: Mapping[str, Any],
        scope: Scope | None = None,
        since: "Tracker | None" = None,
    ) -> None:
        self._objects, self._scope = dict(objects), scope or Scope()
        self._lost: dict[str, None] = {}
        self._said = False
        earlier = since._first if since is not None else None
        first = Visit(self._objects, self._scope, since=earlier)
        self._first: Visit = first
        # These and what they hold are told by themselves, wherever else they are.
        elsewhere = first.known.keys()
        self._new: dict[str, Seen] = {}
        self._before: dict[str, Seen] = {}
        for path, part in first.parts.items():
            if since is not None and since._first.parts.get(path) is part:
                self._before[path] = since._before[path]
            elif path in first.homes:
                self._before[path] = Seen.looked_into(self._scope, part.value)
            else:
                others = elsewhere - {id(part.value)}
                self._before[path] = Seen(self._scope, part.value, others)
                if self._scope.whole and not self._before[path].is_known():
                    self._lost[self._name(part)] = None
        self._elsewhere = elsewhere

    def capture(self) -> JSON:
        """What changed, as JSON, with its larger ``arrays`` by name."""
        changes: dict[str, Any] = {}
        arrays: dict[str, np.ndarray] = {}
        lost: list[str] = []
        live = self._visit()
        shared = self._shared(live)
        for path, part in live.parts.items():
            home = live.homes.get(path, shared.get(path))
            if home is not None:
                found = self._moved(part, home)
            else:
                try:
                    found = self._seen(path).change(part.value, arrays, _safe(path))
                except Lost:
                    lost.append(self._name(part))
                    continue
            if found is not None:
                changes[path] = {"of": part.of, "key": part.key, **found}
        self._lost.update(dict.fromkeys(lost))
        deleted = [
            path
            for path, part in self._first.parts.items()
            if part.of in live.owners and path not in live.parts
        ]
        kept = {"changes": changes, "arrays": arrays, "deleted": deleted, "lost": lost}
        return {name: item for name, item in kept.items() if item}

    def restore(self, state: JSON) -> None:
        """Make the objects what they were when ``state`` was captured."""
        problems = self.plan(state, state.get("arrays", {}))()
        if problems and not self._said:
            self._said = True
            warn_not_exact(
                "these attributes of the data had changed, and could not be put back",
                problems,
            )

    def plan(self, state: JSON, arrays: Mapping[str, Any]) -> Callable[[], list[str]]:
        """Read all of a state; nothing is changed before what this returns is called.

        Returns:
            What puts it back, and gives the names of what could not be.

        Raises:
            LookupError: An array, class or function that it refers to is not there.
            ValueError: This is not a captured state.
        """
        plains = {
            path: decode(entry["data"], arrays)
            for path, entry in state.get("changes", {}).items()
        }
        return partial(self._put_all_back, state, plains)

    def uncaptured(self) -> list[str]:
        """What no capture holds, as ``"MyDataset.attribute (type)"``."""
        return list(self._lost)

    # Capturing ------------------------------------------------------------------------

    def _visit(self) -> Visit:
        return Visit(self._objects, self._scope, self._first)

    def _object(self, path: str) -> Any:
        """What was there when this was made."""
        return self._before[path].value() if path in self._before else None

    def _seen(self, path: str) -> Seen:
        if path in self._before:
            return self._before[path]
        if path not in self._new:
            self._new[path] = Seen.nothing(self._scope, self._elsewhere)
        return self._new[path]

    def _moved(self, part: Part, home: str) -> JSON | None:
        """What is kept of a place that leads to an object with a home."""
        if part.path == home or part.value is self._object(part.path):
            return None
        return {"kind": "alias", "data": home}

    def _shared(self, live: Visit) -> dict[str, str]:
        """Paths that lead to a value of another path, whose it is."""
        found: dict[int, list[str]] = {}
        for path, part in live.parts.items():
            if path not in live.homes and not isinstance(part.value, _IMMUTABLE):
                found.setdefault(id(part.value), []).append(path)
        shared: dict[str, str] = {}
        for paths in found.values():
            value = live.parts[paths[0]].value
            old = [path for path in paths if self._object(path) is value]
            owner = (old or paths)[0]
            shared.update({path: owner for path in paths if path != owner})
        return shared

    # Putting back ---------------------------------------------------------------------

    def _put_all_back(self, state: JSON, plains: Mapping[str, Any]) -> list[str]:
        changes, deleted = state.get("changes", {}), state.get("deleted", ())
        problems = list(state.get("lost", ())) if not self._scope.whole else []
        live = self._visit()
        gone = [
            part._replace(value=_GONE)
            for path, part in self._first.parts.items()
            if path not in live.parts and path not in deleted
        ]
        for part in [*live.parts.values(), *gone]:
            if part.path not in changes and not self._put_back(part, live):
                problems.append(self._name(part))
        for path, entry in changes.items():
            now = live.parts[path].value if path in live.parts else _GONE
            part = Part(path, entry["of"], self._owner(entry, live), entry["key"], now)
            if not self._apply(part, entry, plains[path]):
                problems.append(self._name(part))
        for path in reversed(deleted):
            if path in live.parts:
                delete(live.parts[path])
        self._share_again(changes)
        return problems

    def _owner(self, entry: JSON, live: Visit) -> Any:
        return live.owners.get(entry["of"], self._first.owners.get(entry["of"]))

    def _share_again(self, changes: JSON) -> None:
        live = self._visit()
        for path, entry in changes.items():
            if entry["kind"] == "alias":
                home = entry["data"]
                value = live.object(home) or self._first.object(home)
                if value is None and home in live.parts:
                    value = live.parts[home].value
                owner = self._owner(entry, live)
                if value is not None and owner is not None:
                    put(Part(path, entry["of"], owner, entry["key"], None), value)

    def _apply(self, part: Part, entry: JSON, plain: Any) -> bool:
        """Put back what was captured; False if that cannot be done."""
        seen, kind = self._before.get(part.path), entry["kind"]
        if kind == "alias":
            return True  # has its turn when all others are there
        first = seen.value() if seen is not None and entry["same"] else None
        if kind in WRITTEN:
            if first is not None and part.value is not first:
                put(part, first)
            value = part.value if first is None else first
            return self._written(value, kind, plain)
        if part.owner is None:
            return False
        if kind == "order":
            if seen is None or seen.items is None or len(seen.items) != len(plain):
                return False
            plain = [seen.items[place] for place in plain.tolist()]
        else:
            plain = made(kind, plain)
        if first is not None and assign_in_place(first, plain):
            plain = first
        if part.value is not plain:
            put(part, plain)
        return True

    def _put_back(self, part: Part, live: Visit) -> bool:
        """Undo what this process alone changed; False if that cannot be done."""
        seen = self._before.get(part.path)
        if seen is None:
            if not self._is_kept_by(part, live):
                delete(part)
            return True
        if seen.kind == "object":
            if live.homes.get(part.path) != part.path:
                put(part, seen.value())
            return True
        if part.path not in live.homes and self._is_as_before(part, seen):
            return True
        if seen.is_whole() or (self._scope.whole and not seen.is_light()):
            put(part, seen.value())
            return True
        try:
            entry = {"kind": seen.kind, "same": True}
            return self._apply(part, entry, seen.again())
        except LookupError:
            return False

    def _is_kept_by(self, part: Part, live: Visit) -> bool:
        """Whether something new may stay: a file opened meanwhile, a new object."""
        home = live.homes.get(part.path)
        if home is not None:
            return home == part.path
        of_new = part.of not in self._first.owners
        return of_new or not Seen(self._scope, part.value).is_light()

    def _is_as_before(self, part: Part, seen: Seen) -> bool:
        try:
            return seen.change(part.value, {}, "now") is None
        except Lost:
            return False

    def _name(self, part: Part) -> str:
        part = self._first.parts.get(part.path, part) if part.value is _GONE else part
        root = self._first.root(part.path)
        cls = type(self._objects[root]).__qualname__.rpartition("<locals>.")[2]
        kind = type(part.value)
        known = kind.__module__ in ("builtins", "__main__")
        name = kind.__qualname__ if known else f"{kind.__module__}.{kind.__qualname__}"
        return f"{cls}{part.path.removeprefix(root)} ({name})"

    def _written(self, value: Any, kind: str, plain: Any) -> bool:
        """Give an object this content; False if it is not one for it."""
        if read(value, self._scope).kind != kind:
            return False
        try:
            write(value, kind, plain, self._scope)
        except (ValueError, OSError):
            return False
        return True


def _safe(path: str) -> str:
    """A path as a name of arrays."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", path)
