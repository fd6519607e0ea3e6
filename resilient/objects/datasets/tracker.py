"""What changed in the user's own data objects since training began; putting that back.

As with callbacks only changes are kept, and what was changed in place is restored in
place. Unlike callbacks, datasets hold gigabytes: see ``content`` for what is
read of them, and ``baseline`` for how a change is told. Handles, locks, functions and
transforms of libraries are configuration, which the script makes anew: they are not
kept, but named where ``marks`` sees that they changed.

Refuses nothing: what changed and is not kept is named by ``uncaptured``, and named once
more when it is missing after a resume.
"""

from collections.abc import Mapping
from typing import Any

from resilient.errors import warn_not_exact
from resilient.objects.datasets.baseline import Change, Lost, Seen
from resilient.objects.datasets.content import (
    WRITTEN,
    Weight,
    is_iterator,
    made,
    read,
    write,
)
from resilient.objects.datasets.traversal import DatasetPart, Visit, delete, put
from resilient.objects.snapshot import assign_in_place
from resilient.serialization import JSON
from resilient.serialization.json_values import decode

_IMMUTABLE = (int, float, complex, str, bytes, tuple, frozenset, type(None))


class DataAttributes:
    """The attributes of data objects, as they were when this was made.

    Args:
        objects: Name to object. An object with ``state_dict`` and ``load_state_dict``
            is asked for its state instead.
        asked: Whether that is so; if not, of these objects the attributes count, too.
    """

    def __init__(self, objects: Mapping[str, Any], *, asked: bool = True) -> None:
        self._objects = dict(objects)
        self._asked = asked
        self._lost: dict[str, None] = {}
        self._said = False
        self._first = Visit(self._objects, None, asked)
        # These and what they hold are told by themselves, wherever else they are.
        owners = self._first.owners.values()
        self._elsewhere = {id(owner) for owner in owners} | self._first.met
        self._before = {
            part.path: Seen(part.value, self._elsewhere - {id(part.value)})
            for part in self._first.parts.values()
        }
        self._new: dict[str, Seen] = {}
        for path, value in self._first.owners.items():
            self._before[path] = Seen.looked_into(value)

    def capture(self) -> JSON:
        """What changed: plain values and arrays that nobody changes any more."""
        changes: dict[str, Any] = {}
        arrays: dict[str, Any] = {}
        lost: list[str] = []
        live = Visit(self._objects, self._first, self._asked)
        aliases = self._aliases(live)
        for path, part in live.parts.items():
            if path in aliases:
                if part.value is not self._object(path):
                    entry = {"kind": "alias", "data": aliases[path]}
                    changes[path] = {"of": part.of, "key": part.key, **entry}
                continue
            try:
                found = self._change(part, f"a{len(changes)}")
            except Lost:
                lost.append(self._named(part))
                continue
            if found is not None:
                changes[path] = {"of": part.of, "key": part.key, **found.entry}
                arrays.update(found.arrays)
        self._lost.update(dict.fromkeys(lost))
        deleted = [
            path
            for path, of in self._first.paths.items()
            if of in live.owners and path not in live.paths
        ]
        found_all = {"changes": changes, "arrays": arrays, "deleted": deleted}
        return {
            name: item for name, item in {**found_all, "lost": lost}.items() if item
        }

    def restore(self, value: JSON) -> None:
        """Make the objects what they were when ``value`` was captured."""
        changes, arrays = value.get("changes", {}), value.get("arrays", {})
        problems = list(value.get("lost", ()))
        live = Visit(self._objects, self._first, self._asked)
        for path, part in live.parts.items():
            if path not in changes and not self._put_back(part):
                problems.append(self._named(part))
        for path, entry in changes.items():
            of, key = entry["of"], entry["key"]
            now = live.parts[path].value if path in live.parts else None
            part = DatasetPart(path, of, live.owners.get(of), key, now)
            if not self._apply(part, entry, arrays):
                problems.append(self._named(part))
        for path in reversed(value.get("deleted", ())):
            if path in live.parts:
                delete(live.parts[path])
        self._restore_aliases(changes)
        if problems and not self._said:
            self._said = True
            warn_not_exact(
                "these attributes of the data had changed, and could not be put back",
                problems,
            )

    def uncaptured(self) -> list[str]:
        """What changed and no capture holds, as ``"MyDataset.attribute (type)"``."""
        return list(self._lost)

    # --------------------------------------------------------------------------------

    def _object(self, path: str) -> Any:
        """What was there when this was made."""
        return self._before[path].value() if path in self._before else None

    def _aliases(self, live: "Visit") -> dict[str, str]:
        """Paths that lead to an object of another path, to which it belongs."""
        found: dict[int, list[str]] = {}
        for path, part in live.parts.items():
            if not isinstance(part.value, _IMMUTABLE):
                found.setdefault(id(part.value), []).append(path)
        aliases: dict[str, str] = {}
        for paths in found.values():
            value = live.parts[paths[0]].value
            old = [path for path in paths if self._object(path) is value]
            owner = (old or paths)[0]
            aliases.update({path: owner for path in paths if path != owner})
        return aliases

    def _restore_aliases(self, changes: JSON) -> None:
        live = Visit(self._objects, self._first, self._asked)
        for path, entry in changes.items():
            if entry["kind"] == "alias" and entry["data"] in live.parts:
                of, key = entry["of"], entry["key"]
                part = DatasetPart(path, of, live.owners.get(of), key, None)
                put(part, live.parts[entry["data"]].value)

    def _change(self, part: DatasetPart, name: str) -> Change | None:
        if is_iterator(part.value):
            raise Lost
        seen = self._before.get(part.path)
        if seen is None:
            seen = self._new.setdefault(part.path, Seen(None, self._elsewhere))
        return seen.change(part.value, name)

    def _apply(self, part: DatasetPart, entry: JSON, arrays: JSON) -> bool:
        """Put back what was captured; False if that cannot be done."""
        seen, kind = self._before.get(part.path), entry["kind"]
        if kind == "alias":
            return True  # has its turn when all others are there
        plain = decode(entry["data"], arrays)
        if kind in WRITTEN:
            return _written(part.value, kind, plain)
        if part.owner is None:
            return False
        if kind == "order":
            if seen is None or seen.items is None or len(seen.items) != len(plain):
                return False
            plain = [seen.items[place] for place in plain.tolist()]
        else:
            plain = made(kind, plain)
        first = seen.value() if seen is not None and entry["same"] else None
        if first is not None and assign_in_place(first, plain):
            plain = first
        if part.value is not plain:
            put(part, plain)
        return True

    def _put_back(self, part: DatasetPart) -> bool:
        """Undo what this process alone changed; False if that cannot be done."""
        seen = self._before.get(part.path)
        if seen is None:  # a file that was opened meanwhile may stay
            if read(part.value).weight is Weight.LIGHT:
                delete(part)
            return True
        try:
            if seen.change(part.value, "now") is None:
                return True
        except Lost:
            pass
        if seen.is_whole():
            put(part, seen.value())
            return True
        try:
            first = seen.again()
        except LookupError:
            return False
        if seen.kind in WRITTEN:
            return _written(part.value, seen.kind, first)
        entry = {"kind": seen.kind, "data": seen.data, "same": True}
        return self._apply(part, entry, {})

    def _named(self, part: DatasetPart) -> str:
        root = next(
            name
            for name in self._objects
            if part.path == name
            or part.path.startswith((f"{name}.", f"{name}[", f"{name}:"))
        )
        cls = type(self._objects[root]).__qualname__.rpartition("<locals>.")[2]
        kind = type(part.value)
        known = kind.__module__ in ("builtins", "__main__")
        name = kind.__qualname__ if known else f"{kind.__module__}.{kind.__qualname__}"
        return f"{cls}{part.path.removeprefix(root)} ({name})"


def _written(value: Any, kind: str, plain: Any) -> bool:
    """Give an object this content; False if it is not one for it."""
    if value is None or read(value).kind != kind:
        return False
    try:
        write(value, kind, plain)
    except (ValueError, OSError):
        return False
    return True
