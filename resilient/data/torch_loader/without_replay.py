"""DataLoaders that return to a position without loading the batches before it.

Without workers, indices are drawn again, and the last batch is loaded, to check that
the data is still the same; and that only if loading it draws no random numbers and
changes no attributes. At the end of an epoch its indices are saved, if they are plain
numbers.

torchdata's ``StatefulDataLoader`` has a ``state_dict``. It collects its workers'
states: the order is exact, but random numbers that workers draw start over.
"""

from collections.abc import Iterator
from typing import Any, TypedDict

import numpy as np
import torch
from torch.utils._pytree import tree_map, tree_map_only
from torch.utils.data import _DatasetKind

from resilient.data.source import SourceContext, ended
from resilient.data.torch_loader.source import FOLLOWED, LoaderSource
from resilient.errors import NotSupportedError, warn_not_exact
from resilient.objects import kinds
from resilient.objects.leaves import digest
from resilient.serialization import JSON
from resilient.serialization.batches import pack, unpack
from resilient.serialization.json_values import NotEncodable, decode, encode
from resilient.serialization.schema import MalformedError
from resilient.state.rng import capture

_TENSOR = "torch tensor"


class _Last(TypedDict):
    indices: int | list[int]
    attributes: JSON


class IndexedLoader(LoaderSource):
    """A map-style dataset without workers: only indices are drawn again."""

    schema_of_last = _Last

    def last_batch(self) -> JSON:
        newest = self._indices.newest if self._indices is not None else None
        if newest is None or not _is_plain(newest):
            return {}
        attributes = self._entries[-1]["made"]["attributes"]
        return {"indices": newest, "attributes": attributes}

    def remake_last_batch(self, position: JSON, last: JSON) -> Any:
        loader = self.loader
        fetcher = _DatasetKind.create_fetcher(
            loader._dataset_kind,
            loader.dataset,
            loader._auto_collation,
            loader.collate_fn,
            loader.drop_last,
        )
        now = self.state.lasting()
        return self._loaded(fetcher, last["indices"], last["attributes"], now)

    def seek(self, position: JSON, given: int) -> tuple[Iterator[Any], Any]:
        entry, now = self.entries_of(position)[-1], self.state.lasting()
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
        fetcher, attributes = batches._dataset_fetcher, entry["made"]["attributes"]
        return batches, self._loaded(fetcher, indices, attributes, now)

    def _loaded(self, fetcher: Any, indices: Any, attributes: JSON, now: JSON) -> Any:
        """The last batch; None if it may have been different when it was first drawn.

        Args:
            fetcher: torch's fetcher, which turns indices into batches.
            indices: The indices of the batch.
            attributes: The attributes when its iterator was created.
            now: The state now.
        """
        if indices is None or digest(attributes) != digest(now["attributes"]):
            return None
        backend = self.settings.backend
        before = capture(backend)
        with self.getting_back():
            batch = fetcher.fetch(indices)
        unchanged = digest(self.state.lasting()) == digest(now)
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
        now = self.state.lasting()
        with self.getting_back():
            self.loader.load_state_dict(_decoded(self._of_workers))
            iter(self.loader)
        self.state.restore(now)
        self._of_workers, self._behind = None, False

    def seek(self, position: JSON, given: int) -> tuple[Iterator[Any], Any]:
        if position.get("state") is None:
            return super().seek(position, given)
        if position.get("finished"):
            return iter(()), None
        made, now = self.entries_of(position)[-1]["made"], self.state.lasting()
        self.state.restore(made)
        with self.getting_back():
            self.loader.load_state_dict(_decoded(position["state"]))
            batches: Any = self.make(made)
        if batches._num_yielded != given:
            raise MalformedError("the state of another batch")
        self._of_workers, self._behind = None, False
        # An iterable may yet have to read what load_state_dict left there.
        self.state.restore(now, attributes=not _is_iterable(self.loader))
        return batches, None


def has_exact_state(loader: Any) -> bool:
    """Whether it is a ``StatefulDataLoader`` whose state determines its order."""
    if "StatefulDataLoader" not in {cls.__name__ for cls in type(loader).__mro__}:
        return False
    if _is_iterable(loader):  # which would replay, unverified, if it has no state
        return kinds.has_state_dict(loader.dataset)
    return type(loader._index_sampler).__module__.startswith("torchdata.")


def _is_iterable(loader: Any) -> bool:
    return isinstance(loader.dataset, torch.utils.data.IterableDataset)


def _encoded(state: Any) -> JSON:
    """A state as JSON and copies of its arrays."""
    arrays: dict[str, np.ndarray] = {}
    plain = tree_map_only(torch.Tensor, lambda tensor: {_TENSOR: pack(tensor)}, state)
    try:
        data = encode(plain, arrays, "state")
    except NotEncodable as error:
        raise NotSupportedError(
            "The state_dict() of a StatefulDataLoader cannot be saved.",
            received=str(error),
            hint="Keep plain values, lists, dicts, arrays and tensors in it, or pass "
            "replay_data=True.",
        ) from error
    return {"data": data, "arrays": {k: np.array(a) for k, a in arrays.items()}}


def _decoded(state: Any) -> Any:
    def whole(leaf: Any) -> Any:
        return unpack(leaf[_TENSOR]) if is_tensor(leaf) else leaf

    def is_tensor(value: Any) -> bool:
        return type(value) is dict and set(value) == {_TENSOR}

    plain = decode(state["data"], state["arrays"])
    return tree_map(whole, plain, is_leaf=is_tensor)


def _is_plain(indices: Any) -> bool:
    items = indices if isinstance(indices, list) else [indices]
    return all(type(item) is int for item in items)
