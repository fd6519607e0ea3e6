"""Restores objects to a captured state, whatever this process did to them."""

from collections.abc import Mapping
from typing import Any

from resilient.objects import kinds
from resilient.objects.baseline import Lost, Seen
from resilient.objects.beginning import GONE, Beginning
from resilient.objects.content import WRITTEN, Scope, made, read, write
from resilient.objects.in_place import assign_in_place
from resilient.objects.traversal import (
    Slot,
    Visit,
    delete,
    has_items,
    hidden_of,
    path_of,
    put,
)
from resilient.serialization import JSON
from resilient.serialization.classes import is_of_all


class PutBack:
    """One restore.

    Args:
        beginning: The objects, as they were when training began.
        state: The result of ``Tracker.capture``.
        plains: The decoded values of its changes.
    """

    def __init__(
        self, beginning: Beginning, state: JSON, plains: Mapping[str, Any]
    ) -> None:
        self._beginning, self._scope = beginning, beginning.scope
        self._first = beginning.first
        self._state, self._plains = state, plains

    def run(self) -> list[str]:
        """Restore everything; return the names of what could not be restored."""
        changes = self._state.get("changes", {})
        deleted = self._state.get("deleted", ())
        problems = []
        self._reset_containers()
        live = self._beginning.visit()
        gone = [
            part._replace(value=GONE)
            for path, part in self._first.parts.items()
            if path not in live.parts and path not in deleted
        ]
        for part in [*live.parts.values(), *gone]:
            if part.path not in changes and not self._undo(part, live):
                problems.append(self._beginning.name(part))
        for path, entry in changes.items():
            part = self._place(path, entry, live)
            if not self._apply(part, entry, self._plains[path]):
                problems.append(self._beginning.name(part))
        for path in reversed(deleted):
            if path in live.parts and _may_be_put_back(live.parts[path], self._scope):
                delete(live.parts[path])
        problems += self._share(changes)
        for home, keys in self._state.get("orders", {}).items():
            _sort(self._first.owners.get(home), keys)
        return list(dict.fromkeys(problems))

    def _reset_containers(self) -> None:
        """Give containers their former items, before anything else is restored."""
        for home, items in self._beginning.items.items():
            owner = self._first.owners[home]
            if isinstance(owner, list):
                if len(owner) != len(items):
                    owner[:] = items.values()
            elif list(owner) != list(items):
                owner.clear()
                owner.update(items)

    def _place(self, path: str, entry: JSON, live: Visit) -> Slot:
        of, key = entry["of"], entry["key"]
        owner = live.owners.get(of, self._first.owners.get(of))
        now = live.parts[path].value if path in live.parts else GONE
        return Slot(path, of, owner, key, now)

    def _share(self, changes: JSON) -> list[str]:
        """Point places at objects, which have their content by now.

        Returns:
            The names of places that failed: a checkpoint must not pass on code.
        """
        live, problems = self._beginning.visit(), []
        for path, entry in changes.items():
            where, part = self._plains[path], self._place(path, entry, live)
            found = None
            if entry["kind"] == "object":
                found = live.object(where)
            elif entry["kind"] == "alias" and where in live.parts:
                found = live.parts[where].value
            if found is None or part.owner is None:
                continue
            if kinds.is_code(found) and not is_of_all(found):
                problems.append(self._beginning.name(part))
            elif _may_be_put_back(part, self._scope):
                put(part, found)
        return problems

    def _apply(self, part: Slot, entry: JSON, plain: Any) -> bool:
        """Restore what was captured; False if impossible."""
        seen, kind = self._beginning.seen.get(part.path), entry["kind"]
        if not _may_be_put_back(part, self._scope):
            return False
        if kind in ("alias", "object"):
            return True  # its turn comes when all others exist
        first = seen.value() if seen is not None and entry.get("same") else None
        if "was" in entry:
            first = self._beginning.object(entry["was"])
        if kinds.is_code(first):
            first = None
        if kind in WRITTEN:
            if first is not None and part.value is not first and not put(part, first):
                return False
            return self._write(part.value if first is None else first, kind, plain)
        if part.owner is None:
            return False
        if kind == "order":
            if seen is None or seen.items is None or len(seen.items) != len(plain):
                return False
            plain = [seen.items[place] for place in plain.tolist()]
        else:
            plain = made(kind, plain, self._scope)
        if first is not None and _assigned(first, plain):
            plain = first
        return part.value is plain or put(part, plain)

    def _write(self, value: Any, kind: str, plain: Any) -> bool:
        """Give an object this content; False if it does not fit."""
        if read(value, self._scope).kind != kind:
            return False
        try:
            write(value, kind, plain, self._scope)
        except Exception:  # a different shape, or the object's own code failed
            return False
        return True

    def _undo(self, part: Slot, live: Visit) -> bool:
        """Undo what only this process changed; False if impossible."""
        seen = self._beginning.seen.get(part.path)
        if seen is None:
            if not self._may_stay(part, live):
                delete(part)
            return True
        if seen.kind == "object":
            stands_in = live.homes.get(part.path) == part.path
            as_before = part.value is seen.value() or stands_in
            return as_before or put(part, seen.value())
        if seen.is_written_in_place() and part.value is not seen.value():
            put(part, seen.value())
            part = part._replace(value=seen.value())
        elif part.path in live.homes:
            part = part._replace(value=GONE)
        if _is_as_before(part, seen):
            return True
        if seen.is_whole():
            return put(part, seen.value())
        if self._scope.whole and not seen.is_light():
            first = part._replace(value=seen.value())
            return put(part, first.value) and _is_as_before(first, seen)
        try:
            entry = {"kind": seen.kind, "same": True}
            return self._apply(part, entry, seen.again())
        except LookupError:
            return False

    def _may_stay(self, part: Slot, live: Visit) -> bool:
        """Whether a new value may stay: a file opened meanwhile, a new object."""
        home = live.homes.get(part.path)
        if home is not None:
            return home == part.path
        of_new = part.of not in self._first.owners
        return of_new or not Seen(self._scope, "", part.value).is_light()


def _may_be_put_back(part: Slot, scope: Scope) -> bool:
    """Whether a pass looks at this path: a checkpoint may change nothing else."""
    if part.owner is None:  # a root, which is not replaced
        return True
    items = has_items(part.owner)
    if part.path != path_of(part.of, part.key, items=items):
        return False  # its path decides what it may hold
    if kinds.names_a_place(part.owner, part.key):
        return False
    hidden = hidden_of(part.owner) | scope.hidden.get(part.of, frozenset())
    return items or part.key not in hidden


def _assigned(live: Any, plain: Any) -> bool:
    try:
        return assign_in_place(live, plain)
    except Exception:  # its buffer is exported, or its elements share memory
        return False


def _sort(owner: Any, keys: list[Any]) -> None:
    """Reorder a dict to this order, if it has these keys."""
    if isinstance(owner, dict) and set(owner) == set(keys):
        items = {key: owner[key] for key in keys}
        owner.clear()
        owner.update(items)


def _is_as_before(part: Slot, seen: Seen) -> bool:
    try:
        return seen.change(part.value, {}) is None
    except Lost:
        return False
