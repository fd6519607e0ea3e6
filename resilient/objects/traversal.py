"""One pass over all callbacks and what they refer to."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from resilient.serialization import Encoded
from resilient.serialization.json_values import encode

Action = Callable[[], object]
Arrays = Mapping[str, np.ndarray]


class Place(NamedTuple):
    """Where a pass is.

    Attributes:
        name: For arrays: letters, digits, ``_``, ``-`` and ``.``.
        path: For messages.
        depth: How many objects and containers lead here.
    """

    name: str
    path: str
    depth: int = 0

    def inside(self, key: str) -> "Place":
        safe = re.sub(r"[^A-Za-z0-9_-]", "_", key)
        return Place(f"{self.name}.{safe}", f"{self.path}.{key}", self.depth + 1)


class Walk:
    """What one pass has met, so that everything has its turn once.

    Args:
        callbacks: Where it begins.
        own: Gives the ids of the variables that are saved with the model.
        arrays: The larger arrays: a capture fills it, a restore reads it.

    Attributes:
        arrays: The same.
        uncaptured: Names of attributes that cannot be captured.
        problems: What could not be put back.
    """

    def __init__(
        self,
        callbacks: Sequence[Any],
        own: Callable[[], set[int]],
        arrays: Mapping[str, np.ndarray],
    ) -> None:
        self._seen = {id(callback) for callback in callbacks}
        self._find_own = own
        self._own: set[int] | None = None
        self.arrays = dict(arrays)
        self.uncaptured: list[str] = []
        self.problems: list[str] = []

    def knows(self, value: object) -> bool:
        """Whether this object had its turn already."""
        return id(value) in self._seen

    def enter(self, value: object) -> bool:
        """Whether it is this object's turn; only the first time it is."""
        known = self.knows(value)
        self._seen.add(id(value))
        return not known

    def is_own(self, variable: object) -> bool:
        """Whether a variable is part of the model that is trained."""
        if self._own is None:
            self._own = self._find_own()
        return id(variable) in self._own

    def keep(
        self, value: Any, data: Encoded, found: Mapping[str, np.ndarray], place: Place
    ) -> Encoded:
        """Take over the arrays of an encoded value; its JSON, if names clash anew."""
        if found.keys() & self.arrays.keys():
            return encode(value, self.arrays, place.name)
        self.arrays.update(found)
        return data

    def refuse(self, place: Place, value: object) -> None:
        """Note something that cannot be captured."""
        kind = type(value)
        name = kind.__qualname__
        if kind.__module__ not in ("builtins", "__main__"):
            name = f"{kind.__module__}.{name}"
        self.uncaptured.append(f"{place.path} ({name})")
