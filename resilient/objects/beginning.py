"""Remembers objects, and what they refer to, as they were when training began."""

from collections.abc import Mapping
from typing import Any

from resilient.objects import kinds
from resilient.objects.baseline import IMMUTABLE, Seen
from resilient.objects.content import Scope
from resilient.objects.traversal import Slot, Visit, array_name, has_items
from resilient.serialization.classes import NOTHING, Known

GONE = object()  # stands for a missing value


class Beginning:
    """The initial look, with which everything later is compared.

    Args:
        objects: Name to object.
        scope: What is state.
        since: An earlier one, which takes precedence for the objects that it knows.

    Attributes:
        scope: The same.
        first: The first pass.
        seen: What was at each path.
        unknown: Names of what no checkpoint can hold, if everything is state.
    """

    def __init__(
        self, objects: Mapping[str, Any], scope: Scope, since: "Beginning | None"
    ) -> None:
        self.scope = scope
        self._objects = dict(objects)
        earlier = since.first if since is not None else None
        self.first: Visit = Visit(self._objects, scope, since=earlier)
        # These and their contents are tracked separately, wherever else they appear.
        self._elsewhere = self.first.known.keys()
        self.seen: dict[str, Seen] = {}
        self.unknown: list[str] = []
        for path, part in self.first.parts.items():
            if since is not None and since.first.parts.get(path) is part:
                self.seen[path] = since.seen[path]
            else:
                self.seen[path] = self._look_at(part)
        shared = self.shared(self.first)
        self.were_shared = shared.keys() | set(shared.values())
        self._places = {
            id(part.value): path
            for path, part in reversed(self.first.parts.items())
            if path not in self.first.homes and not isinstance(part.value, IMMUTABLE)
        }
        # The items of containers, in order.
        self.items: dict[str, dict[Any, Any]] = {
            home: {}
            for home, owner in self.first.owners.items()
            if has_items(owner)
            and not isinstance(owner, tuple)
            and home not in self.first.roots  # whose items are not tracked
        }
        for part in self.first.parts.values():
            if part.of in self.items:
                self.items[part.of][part.key] = part.value

    def _look_at(self, part: Slot) -> Seen:
        if part.path in self.first.homes:
            return Seen.looked_into(self.scope, array_name(part.path), part.value)
        name = array_name(part.path)
        seen = Seen(self.scope, name, part.value, self._elsewhere)
        if self.scope.whole and not seen.is_known():
            self.unknown.append(self.name(part))
        return seen

    def visit(self) -> Visit:
        """Pass over the same objects again."""
        return Visit(self._objects, self.scope, self.first)

    def nothing(self, path: str) -> Seen:
        """For a place that held nothing, or a different object."""
        return Seen.nothing(
            self.scope, array_name(path), self._elsewhere, self.known(path)
        )

    def known(self, path: str) -> Known:
        """The classes and functions that its content may refer to."""
        return self.seen[path].known if path in self.seen else NOTHING

    def object(self, path: str) -> Any:
        """The former value."""
        return self.seen[path].value() if path in self.seen else None

    def place(self, value: Any) -> str | None:
        """Where the same object was, if anywhere."""
        path = self._places.get(id(value))
        return path if path is not None and self.object(path) is value else None

    def shared(self, live: Visit) -> dict[str, str]:
        """Paths that lead to a value belonging to another path."""
        found: dict[int, list[str]] = {}
        for path, part in live.parts.items():
            own = isinstance(part.value, IMMUTABLE) or kinds.is_code(part.value)
            if path not in live.homes and not own:
                found.setdefault(id(part.value), []).append(path)
        shared: dict[str, str] = {}
        for paths in found.values():
            value = live.parts[paths[0]].value
            old = [path for path in paths if self.object(path) is value]
            owner = (old or paths)[0]
            shared.update({path: owner for path in paths if path != owner})
        return shared

    def name(self, part: Slot) -> str:
        """As ``"MyDataset.attribute (type)"``, for messages."""
        if part.value is GONE:
            part = self.first.parts.get(part.path, part)
        root = self.first.root(part.path)
        if root is None:  # as claimed by a checkpoint
            return part.path
        cls = type(self._objects[root]).__qualname__.rpartition("<locals>.")[2]
        kind = type(part.value)
        known = kind.__module__ in ("builtins", "__main__")
        name = kind.__qualname__ if known else f"{kind.__module__}.{kind.__qualname__}"
        return f"{cls}{part.path.removeprefix(root)} ({name})"
