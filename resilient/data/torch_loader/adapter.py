"""torch's ``DataLoader`` and torchdata's ``StatefulDataLoader``, on every backend.

How each returns to a position:

* without workers: indices are drawn again, and the last batch is loaded, to check that
  the data is still the same; and that only if loading it draws no random numbers and
  changes no attributes;
* with workers, or over an iterable dataset: replayed, with the same worker seeds;
* ``StatefulDataLoader`` then: by its ``state_dict``. It collects its workers' states:
  the order is exact, but random numbers that workers draw start over.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_map, tree_map_only

from resilient import keras_internals
from resilient.data.source import SourceContext, ended, plain_copy
from resilient.data.torch_loader.source import (
    FOLLOWED,
    LoaderSource,
    has_torch_iterators,
)
from resilient.data.tracked import TrackedAdapter, TrackedIterable
from resilient.errors import warn_not_exact
from resilient.objects import kinds
from resilient.objects.leaves import digest
from resilient.serialization import JSON
from resilient.serialization.batches import pack, unpack
from resilient.state.rng import capture

_TENSOR = "torch tensor"


class TorchLoaderData(
    TrackedAdapter,
    keras_internals.TorchDataLoaderAdapter,  # type: ignore[misc]
):
    """Keras's adapter for DataLoaders, with a position."""

    sure_length = None  # samplers and iterable datasets may have a wrong one

    def __init__(self, dataloader: Any, *, settings: SourceContext) -> None:
        super().__init__(dataloader)
        loader: Any = self._dataloader  # type: ignore[has-type]
        self._source = _source(loader, settings)
        self.tracked = _TrackedLoader(self._source, loader)
        self._dataloader = self.tracked

    def on_epoch_begin(self) -> None:
        super().on_epoch_begin()
        self._source.in_epoch = True

    def on_epoch_end(self) -> None:
        super().on_epoch_end()
        self._source.in_epoch = False


class _TrackedLoader(TrackedIterable):
    """An iterable with the attributes of a loader that Keras uses.

    Attributes:
        sampler: Keras 3.16 sets its epoch.
        prefetch_factor: If set, JAX's trainer before Keras 3.14 does not prefetch.
    """

    def __init__(self, source: LoaderSource, loader: Any) -> None:
        super().__init__(source)
        self.sampler = getattr(loader, "sampler", None)
        self.prefetch_factor = getattr(loader, "prefetch_factor", None)


def _source(loader: Any, settings: SourceContext) -> LoaderSource:
    if settings.options.replay or not has_torch_iterators(loader):
        return LoaderSource(loader, settings)
    iterable = isinstance(loader.dataset, torch.utils.data.IterableDataset)
    if not loader.num_workers and not iterable:
        return IndexedLoader(loader, settings)
    found = StatefulLoader if has_exact_state(loader) else LoaderSource
    return found(loader, settings)


class IndexedLoader(LoaderSource):
    """A map-style dataset without workers: only indices are drawn again."""

    def seek(self, position: JSON, given: int) -> tuple[Iterator[Any], Any]:
        entry, now = position["entries"][-1], self.state.capture()
        self.state.restore(entry["made"])
        batches: Any = self.make(entry["made"], entry["indices"])
        indices = None
        for number in range(given):
            try:
                indices = batches._next_index()
            except StopIteration:
                raise ended(self, given, number) from None
        batches._num_yielded = given
        self.state.restore(now)
        # If they differ, it may have been different when it was first drawn.
        then, attributes = entry["made"]["attributes"], now["attributes"]
        made_alike = given and digest(then) == digest(attributes)
        return batches, self._loaded(batches, indices) if made_alike else None

    def _loaded(self, batches: Any, indices: Any) -> Any:
        """A batch; None if loading it draws random numbers or changes attributes."""
        backend, now = self.settings.backend, self.state.capture()
        before = capture(backend)
        with self.restoring():
            batch = batches._dataset_fetcher.fetch(indices)
        unchanged = digest(self.state.capture()) == digest(now)
        if unchanged and capture(backend) == before:
            return batch
        self.state.restore(now)
        return None


class StatefulLoader(LoaderSource):
    """A loader whose positions hold its ``state_dict``."""

    follows_indices = False  # torchdata needs the sampler's own iterator for its state
    keeps_workers = False  # their states are in its own

    def __init__(self, loader: Any, settings: SourceContext) -> None:
        earlier = vars(loader).get(FOLLOWED)
        super().__init__(loader, settings)
        self._of_workers: JSON | None = getattr(earlier, "_of_workers", None)
        self._behind = self._of_workers is not None
        if loader.num_workers:
            warn_not_exact(
                "if the workers of a StatefulDataLoader draw random numbers, such as "
                "augmentation, they draw others after a resume, since its state_dict "
                "does not hold their generators. The order of the samples is exact, "
                "and if no worker draws, the whole resume is. With replay_data=True "
                "it is exact in either case",
                [f"`{settings.argument}`: {loader.num_workers} workers"],
            )

    def position(self, *, live: bool) -> JSON:
        position = super().position(live=live)
        iterator = self.loader._iterator
        if iterator is None or not (live or self.persistent):
            return {**position, "state": self._of_workers if not live else None}
        if live and iterator._finished:  # a loader would begin anew from this state
            position["finished"] = True
        return {**position, "state": _encoded(self.loader.state_dict())}

    def resume(self, position: JSON) -> None:
        super().resume(position)
        self._of_workers = position.get("state") if self.persistent else None
        self._behind = self._of_workers is not None

    def catch_up(self) -> None:
        now = self.state.capture()
        with self.restoring():
            self.loader.load_state_dict(_decoded(self._of_workers))
            iter(self.loader)
        self.state.restore(now)
        self._of_workers, self._behind = None, False

    def seek(self, position: JSON, given: int) -> tuple[Iterator[Any], Any]:
        if position.get("state") is None:
            return super().seek(position, given)
        if position.get("finished"):
            return iter(()), None
        made, now = position["entries"][-1]["made"], self.state.capture()
        self.state.restore(made)
        with self.restoring():
            self.loader.load_state_dict(_decoded(position["state"]))
            batches: Any = self.make(made)
        self._of_workers, self._behind = None, False
        # An iterable may yet have to read what load_state_dict left there.
        self.state.restore(now, attributes=not _is_iterable(self.loader))
        return batches, None


def has_exact_state(loader: Any) -> bool:
    """Whether it is a ``StatefulDataLoader`` whose state determines its order."""
    if "StatefulDataLoader" not in {cls.__name__ for cls in type(loader).__mro__}:
        return False
    if _is_iterable(loader):  # which would replay, unverified, if it has no state
        return kinds.has_state_dict(type(loader.dataset))
    return type(loader._index_sampler).__module__.startswith("torchdata.")


def _is_iterable(loader: Any) -> bool:
    return isinstance(loader.dataset, torch.utils.data.IterableDataset)


def _encoded(state: Any) -> Any:
    """A copy of a state, without tensors."""
    plain = tree_map_only(torch.Tensor, lambda tensor: {_TENSOR: pack(tensor)}, state)
    return plain_copy(plain, "a StatefulDataLoader")


def _decoded(state: Any) -> Any:
    def whole(leaf: Any) -> Any:
        return unpack(leaf[_TENSOR]) if is_tensor(leaf) else leaf

    def is_tensor(value: Any) -> bool:
        return type(value) is dict and set(value) == {_TENSOR}

    return tree_map(whole, state, is_leaf=is_tensor)
