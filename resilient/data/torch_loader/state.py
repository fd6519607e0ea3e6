"""What the order and content of a DataLoader's batches depend on at a moment.

That is: the global generators of Python, numpy and torch; every generator object of
these libraries that the loader reaches; and changed attributes of the user's datasets,
samplers and collate functions.
"""

from collections.abc import Mapping
from typing import Any, TypedDict

from resilient.data.source import SourceContext
from resilient.objects.attributes import Attributes, generators, unclaimed
from resilient.serialization import JSON, rng


class Moment(TypedDict):
    """All that, at one moment."""

    random: JSON
    attributes: JSON


class LoaderState:
    """Captures and restores all this, for one loader.

    Args:
        loader: The DataLoader, before anything was drawn from it.

    Attributes:
        shared: What others than the sampler may draw from between two batches.
        everything: The names of all generators.
        restored: Of those that no other data of this fit restores.
    """

    def __init__(self, loader: Any, settings: SourceContext) -> None:
        # The dataset first: a generator that it shares with the sampler is named by it.
        parts = {
            "dataset": loader.dataset,
            "collate_fn": getattr(loader.collate_fn, "__self__", loader.collate_fn),
            "sampler": loader.sampler,
            "batch_sampler": loader.batch_sampler,
            "generator": loader.generator,
        }
        self._lasting = found = generators(parts)
        self._own = unclaimed(found, settings.claimed)
        shared = rng.global_generators()
        self._all = shared | found
        objects = {name: part for name, part in parts.items() if part is not None}
        # Not by the state_dict of objects: that is for the middle of an iteration.
        self._attributes = Attributes(objects, found.values(), asks=False)
        self.everything, self.restored = set(self._all), set(self._own)
        drawn = [n for n in found if n.startswith(("dataset", "collate_fn"))]
        self.shared: dict[str, Any] = shared | {name: found[name] for name in drawn}

    def capture(self) -> JSON:
        """The whole state, as plain values and copies of arrays."""
        return self._of(self._all)

    def lasting(self) -> JSON:
        """The same, without the global generators, which a checkpoint has anyway."""
        return self._of(self._lasting)

    def own(self) -> JSON:
        """The same, without the generators that other data of this fit restores."""
        return self._of(self._own)

    def _of(self, generators: Mapping[str, Any]) -> JSON:
        return {
            "random": rng.states(generators),
            "attributes": self._attributes.capture(),
        }

    def restore(self, state: JSON) -> None:
        """Set what ``capture``, ``lasting`` or ``own`` returned."""
        self._attributes.restore(state["attributes"])
        self.restore_random(state)

    def restore_random(self, state: JSON) -> None:
        """Set only the generators of such a state."""
        rng.set_states(self._all, state["random"])

    def uncaptured(self) -> list[str]:
        """Names of attributes that changed and cannot be saved."""
        return self._attributes.uncaptured()
