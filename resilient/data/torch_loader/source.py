"""The position of a torch DataLoader, and how its batches are drawn again.

A loader depends on the global generators of Python, numpy and torch; on every generator
object of these libraries that it reaches; and on changed attributes of the user's
datasets, samplers and collate functions. From the state of all these an iterator is
created again, so that its workers have the same seeds and draw the same, random
augmentation included. Persistent workers carry their random numbers and their copies of
the dataset from one iterator to the next, so with them all iterators since the workers
were started are recreated.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from resilient.data.draws import Draws
from resilient.data.source import DataSource, SourceContext, skip
from resilient.errors import WarnOnce, warn_not_exact
from resilient.objects.attributes import Attributes, generators, unclaimed
from resilient.serialization import JSON, rng
from resilient.state.rng import kept_random_state

_OWN = ("torch.utils.data.", "torchdata.stateful_dataloader.")
FOLLOWED = "_followed_by_resilient"  # attribute of a loader with persistent workers


class LoaderState:
    """Captures and restores what a loader depends on.

    Args:
        loader: The DataLoader, before anything was drawn from it.

    Attributes:
        shared: What others than the sampler may draw from between two batches.
        restored: The names of generators that no other data of this fit restores.
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
        found = generators(parts)
        self._own = unclaimed(found, settings.claimed)
        shared = rng.global_generators()
        self._all = shared | found
        objects = {name: part for name, part in parts.items() if part is not None}
        # Not by the state_dict of objects: that is for the middle of an iteration.
        self._attributes = Attributes(objects, found.values(), asks=False)
        self.restored = set(self._own)
        drawn = [n for n in found if n.startswith(("dataset", "collate_fn"))]
        self.shared: dict[str, Any] = shared | {name: found[name] for name in drawn}

    def capture(self) -> JSON:
        """The whole state, as plain values and copies of arrays."""
        return self._of(self._all)

    def own(self) -> JSON:
        """The same, without the generators that other data of this fit restores."""
        return self._of(self._own)

    def _of(self, generators: Mapping[str, Any]) -> JSON:
        return {
            "random": rng.states(generators),
            "attributes": self._attributes.capture(),
        }

    def restore(self, state: JSON, *, attributes: bool = True) -> None:
        """Set what ``capture`` or ``own`` returned."""
        if attributes:
            self._attributes.restore(state["attributes"])
        rng.set_states(self._all, state["random"])

    def uncaptured(self) -> list[str]:
        """Names of attributes that changed and cannot be saved."""
        return self._attributes.uncaptured()


class LoaderSource(DataSource):
    """Any DataLoader; its batches are drawn again.

    Args:
        loader: The user's loader, before anything was drawn from it.
    """

    keeps_workers = True  # whether later iterators of persistent workers need this one
    follows_indices = True

    def __init__(self, loader: Any, settings: SourceContext) -> None:
        cls = type(loader)
        self.name = f"a torch {cls.__name__}"
        self.loader = loader
        self.settings = settings
        self.persistent = bool(loader.num_workers and loader.persistent_workers)
        # Persistent workers remember what earlier fits of this process did to them.
        earlier = vars(loader).get(FOLLOWED) if self.persistent else None
        self.state = earlier.state if earlier else LoaderState(loader, settings)
        self._each = _draws_for_each_batch(loader, self.state.shared)
        # The iterators that a replay has to recreate, the newest last.
        self._entries: list[JSON] = []
        self._batches: Any = None
        self._indices: Draws | None = None
        self._behind = False
        self.in_epoch = False
        self._say = WarnOnce()
        if self.persistent:
            setattr(loader, FOLLOWED, self)
        if earlier is not None:
            self._entries, self._behind = earlier._closed(), earlier._behind
        self._warn_early(earlier)

    def begin(self) -> Iterator[Any]:
        if self._behind:
            with kept_random_state(self.settings.backend):
                self.catch_up()
        return self.make(self.state.capture())

    def catch_up(self) -> None:
        """Replay what persistent workers did; keep the loader's own state."""
        now = self.state.capture()
        self.replay(self._entries)
        self.state.restore(now)
        self._behind = False

    def position(self, *, live: bool) -> JSON:
        """The iterators to recreate, and the state now.

        Of each iterator: the state when it was ``made``, the batches ``given``, and the
        position of its ``indices``, the ``Draws``.
        """
        self._warn()
        entries = self._closed() if live or self._lasts else []
        now = self.state.own()
        return {"entries": entries, "now": now, "in_epoch": self.in_epoch}

    def resume(self, position: JSON) -> None:
        self.require_states(self.state.restored, position["now"]["random"])
        self.state.restore(position["now"])
        self._batches, self._indices = None, None
        self._entries = list(position["entries"])
        self._behind = self._lasts and bool(self._entries)

    def seek(self, position: JSON, given: int) -> tuple[Iterator[Any], Any]:
        *before, entry = position["entries"]
        now = self.state.capture()
        last = self.replay([*before, {**entry, "given": given}])
        self.state.restore(now)
        self._behind = False
        return self._batches, last

    def fingerprint(self) -> JSON:
        loader = self.loader
        dataset, sampler = type(loader.dataset), type(loader.sampler)
        batches = type(loader.batch_sampler)
        sized = hasattr(loader.dataset, "__len__")
        return {
            "kind": "torch DataLoader",
            "class": type(loader).__name__,
            "dataset": dataset.__qualname__,
            "samples": len(loader.dataset) if sized else None,
            "batches": len(loader) if sized else None,
            "batch_size": loader.batch_size,
            "drop_last": bool(loader.drop_last),
            "sampler": sampler.__qualname__,
            "batch_sampler": batches.__qualname__,
        }

    @property
    def _lasts(self) -> bool:
        """Whether workers carry state from one iterator to the next."""
        return self.persistent and self.keeps_workers

    def make(self, made: JSON, again: JSON | None = None) -> Iterator[Any]:
        """A new iterator.

        Args:
            made: The current state, from which to recreate it.
            again: Position of the ``Draws`` to repeat.
        """
        self._entries = self._closed() if self._lasts else []
        self._batches, self._indices = None, None
        batches: Any = iter(self.loader)
        if hasattr(batches, "_sampler_iter") and self.follows_indices:
            sampler = batches._sampler_iter
            shared, each = self.state.shared, self._each
            self._indices = Draws(sampler, shared, each=each, known=again)
            batches._sampler_iter = self._indices
        self._entries.append({"made": made})
        self._batches = batches
        made_batches: Iterator[Any] = batches
        return made_batches

    def replay(self, entries: Sequence[JSON]) -> Any:
        """Recreate these iterators, and return the last one's last batch."""
        if self.persistent:
            self.loader._iterator = None  # ends these workers
        self._entries, self._batches = [], None
        drawn = self._drawn(entries)
        count = sum(entry["given"] for entry in entries)
        last = skip(drawn, count, self)
        for _ in drawn:  # iterators from which no batch was drawn
            pass
        return last if entries[-1]["given"] else None

    def _drawn(self, entries: Sequence[JSON]) -> Iterator[Any]:
        for entry in entries:
            self.state.restore(entry["made"])
            batches = self.make(entry["made"], entry["indices"])
            yield from itertools.islice(batches, entry["given"])

    def _closed(self) -> list[JSON]:
        """The entries, with how far the newest iterator has come."""
        if self._batches is None:
            return list(self._entries)
        *before, newest = self._entries
        given = getattr(self._batches, "_num_yielded", 0)
        indices = self._indices.position() if self._indices is not None else None
        return [*before, {**newest, "given": given, "indices": indices}]

    def _warn_early(self, earlier: "LoaderSource | None") -> None:
        """Warn about what cannot be exact with this loader."""
        loader, names = self.loader, []
        if loader.num_workers and not getattr(loader, "in_order", True):
            names.append(
                "in_order=False: batches come in whatever order workers finish them"
            )
        if self.persistent and earlier is None and loader._iterator is not None:
            names.append("persistent workers: they were used before this fit")
        if names:
            argument = self.settings.argument
            warn_not_exact(
                f"what the workers of `{argument}` do cannot be repeated exactly", names
            )

    def _warn(self) -> None:
        """Warn once about what will not be exact."""
        lost = self.state.uncaptured()
        names = [f"{name}: it changed and is not saved" for name in lost]
        if self._indices is not None and not self._indices.is_complete:
            names.append(
                f"{type(self.loader.sampler).__name__}: it draws global random "
                "numbers for every batch; give it its own generator"
            )
        self._say(f"parts of `{self.settings.argument}` are not saved", names)


def has_torch_iterators(loader: Any) -> bool:
    """Whether no subclass overrides how it iterates."""
    owner = next(c for c in type(loader).__mro__ if "__iter__" in vars(c))
    return (
        owner is torch.utils.data.DataLoader or owner.__name__ == "StatefulDataLoader"
    )


def _draws_for_each_batch(loader: Any, shared: Mapping[str, Any]) -> bool:
    """Whether the sampler may draw from shared generators after the first batch."""
    sampler = loader._index_sampler
    while type(sampler).__module__.startswith(_OWN) and hasattr(sampler, "sampler"):
        sampler = sampler.sampler
    own = type(sampler).__module__.startswith(_OWN)
    generator = getattr(sampler, "generator", None)
    return not own or any(generator is each for each in shared.values())
