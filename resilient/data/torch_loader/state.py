"""What the order and the content of a DataLoader's batches depend on, at a moment.

That is: the global generators of Python, numpy and torch; every generator object of
these libraries that the loader leads to; and what changed in the attributes of the
user's own datasets, samplers and collate functions.
"""

from typing import Any

import torch

from resilient.data.source import SourceContext
from resilient.objects.content import Scope
from resilient.objects.find_generators import find, unclaimed
from resilient.objects.tracker import Tracker
from resilient.serialization import JSON, rng


class LoaderState:
    """Captures and restores all this, for one loader.

    Args:
        loader: The DataLoader, before anything was drawn from it.
        settings: Of this fit.
    """

    def __init__(self, loader: Any, settings: SourceContext) -> None:
        # The dataset first: a generator that the sampler shares is the dataset's, too.
        parts = {
            "dataset": loader.dataset,
            "collate_fn": getattr(loader.collate_fn, "__self__", loader.collate_fn),
            "sampler": loader.sampler,
            "batch_sampler": loader.batch_sampler,
            "generator": loader.generator,
        }
        self._generators = find(parts)
        self._own = tuple(unclaimed(self._generators, settings.claimed))
        objects = {name: part for name, part in parts.items() if part is not None}
        # Objects with state_dict are not asked: what they tell is meant for the middle
        # of an iteration. What is named is not looked for in the attributes of others.
        self._attributes = Tracker(objects | self._generators, Scope(asks=False))
        drawn = [n for n in self._generators if n.startswith(("dataset", "collate_fn"))]
        # What others than the sampler may draw from between two batches.
        self._global = rng.global_generators()
        self.shared = (*self._global, *drawn)

    def is_shared(self, generator: Any) -> bool:
        """Whether others than the sampler may draw from this generator of its."""
        shared = [self._generators[n] for n in self.shared if n in self._generators]
        return generator is torch.default_generator or any(
            generator is each for each in shared
        )

    def capture(self) -> JSON:
        """All of it: plain values and arrays that nobody changes any more."""
        names = (*self._global, *self._generators)
        return {"random": self.random(names), "attributes": self.attributes()}

    def lasting(self) -> JSON:
        """The same without the global generators, which a checkpoint has anyway."""
        names = tuple(self._generators)
        return {"random": self.random(names), "attributes": self.attributes()}

    def own(self) -> JSON:
        """The same without the generators that other data of this fit puts back."""
        return {"random": self.random(self._own), "attributes": self.attributes()}

    def restore(self, state: JSON) -> None:
        """Set what ``capture``, ``lasting`` or ``own`` returned."""
        self._attributes.restore(state["attributes"])
        self.set_random(state["random"])

    def attributes(self) -> Any:
        """The attributes alone."""
        return self._attributes.capture()

    def uncaptured(self) -> list[str]:
        """Names of attributes that changed and are not kept."""
        return self._attributes.uncaptured()

    def random(self, names: tuple[str, ...]) -> JSON:
        """The states of some generators."""
        generators = self._global | self._generators
        return {name: rng.state(generators[name]) for name in names}

    def set_random(self, states: JSON) -> None:
        """Set the generators that are named, where they are there."""
        rng.set_states(self._global | self._generators, states)
