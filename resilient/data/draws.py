"""Wraps an iterator so that its draws from shared random generators can be repeated.

A sampler or a generator may draw random numbers whenever it is asked for more, and in
between other code draws from the same generators (augmentation, the model, callbacks).
So the states before each draw are kept where others drew since the previous one, and
set before the same draws in a replay. torch's own samplers draw only before the first
batch, so nothing is compared after that.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from resilient.serialization import JSON
from resilient.serialization.rng import set_states, states

MOST = 1000  # states per iterator: about 5 MB


class Draws:
    """Replaces the iterator.

    Args:
        shared: Generators that other code may draw from as well.
        each: Whether any draw may use these, not only the first.
        known: What ``position`` returned; these draws are repeated.
    """

    def __init__(
        self,
        items: Iterator[Any],
        shared: Mapping[str, Any],
        *,
        each: bool,
        known: JSON | None,
    ) -> None:
        self._items = items
        self._shared = shared
        self._each = each
        self._drawn = 0
        self._known = known["drawn"] if known else 0
        self._before: dict[int, JSON] = dict(known["before"]) if known else {}
        self._after: dict[str, JSON] = {}  # the last draw that was watched

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        number = self._drawn
        self._drawn += 1
        if number < self._known:
            set_states(self._shared, self._before.get(number, {}))
        watched = number >= self._known and (self._each or not number)
        return self._watched(number) if watched else next(self._items)

    @property
    def is_complete(self) -> bool:
        """Whether every draw from shared generators can be repeated."""
        return len(self._before) <= MOST

    def position(self) -> JSON:
        """What it takes to draw the same from a new iterator.

        How many were drawn, and generator states before some of these draws.
        """
        drawn = max(self._drawn, self._known)
        return {"drawn": drawn, "before": dict(self._before)}

    def _watched(self, number: int) -> Any:
        before, follows = states(self._shared), self._after
        try:
            return next(self._items)
        finally:
            self._after = after = states(self._shared)
            drawn_from = {n: s for n, s in before.items() if s != after[n]}
            found = {n: s for n, s in drawn_from.items() if s != follows.get(n)}
            if found and self.is_complete:
                self._before[number] = found
