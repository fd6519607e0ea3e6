"""Wraps a sampler's iterator so that it can draw the same indices again.

A sampler may draw random numbers whenever it is asked for indices, and between batches
other code draws from the same generators (augmentation, the model, callbacks). So we
keep the states before each draw that changed them, and set them again before the same
draws. torch's own samplers draw only before the first batch, so nothing is compared
after that.
"""

from collections.abc import Iterator, Mapping
from typing import Any, TypedDict

from resilient.serialization import JSON
from resilient.serialization.rng import set_states, states
from resilient.serialization.schema import Count

_KEPT = 1000  # states per iterator: about 5 MB
_OWN = ("torch.utils.data.", "torchdata.stateful_dataloader.")


class IndicesPosition(TypedDict):
    """How many were drawn, and generator states before some of these draws."""

    drawn: Count
    before: dict[int, JSON]


class Indices:
    """Replaces the sampler's iterator.

    Args:
        shared: Generators that other code may draw from as well.
        each: Whether the sampler may draw before any batch, not only the first.
        again: What ``position`` returned; these draws are repeated.
    """

    def __init__(
        self,
        indices: Iterator[Any],
        shared: Mapping[str, Any],
        each: bool,
        again: JSON | None,
    ) -> None:
        self._indices = indices
        self._shared = shared
        self._each = each
        self._drawn = 0
        self._known = again["drawn"] if again else 0
        self._before: dict[int, JSON] = dict(again["before"]) if again else {}
        self.newest: Any = None  # the last draw

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        number = self._drawn
        self._drawn += 1
        if number < self._known:
            set_states(self._shared, self._before.get(number, {}))
        watched = number >= self._known and (self._each or not number)
        found = self._watched(number) if watched else next(self._indices)
        self.newest = found
        return found

    @property
    def is_complete(self) -> bool:
        """Whether every draw from shared generators can be repeated."""
        return len(self._before) <= _KEPT

    def position(self) -> JSON:
        """What it takes to draw the same indices from a new iterator."""
        drawn = max(self._drawn, self._known)
        return {"drawn": drawn, "before": dict(self._before)}

    def _watched(self, number: int) -> Any:
        before = states(self._shared)
        try:
            return next(self._indices)
        finally:
            after = states(self._shared)
            drawn_from = {n: s for n, s in before.items() if s != after[n]}
            if drawn_from and self.is_complete:
                self._before[number] = drawn_from


def draws_for_each_batch(loader: Any, shared: Mapping[str, Any]) -> bool:
    """Whether the sampler may draw from shared generators after the first batch."""
    sampler = loader._index_sampler
    while type(sampler).__module__.startswith(_OWN) and hasattr(sampler, "sampler"):
        sampler = sampler.sampler
    own = type(sampler).__module__.startswith(_OWN)
    generator = getattr(sampler, "generator", None)
    return not own or any(generator is each for each in shared.values())
