"""DataLoaders that return to a position by the ``state_dict`` of the user's objects.

torchdata's ``StatefulDataLoader`` collects its workers' states: the order is exact, but
random numbers that workers draw start over. For a plain DataLoader without workers, we
use the iterable dataset's own ``state_dict``, as torchdata would.
"""

from collections.abc import Iterator
from typing import Any, TypedDict

import numpy as np
import torch
from torch.utils._pytree import tree_map, tree_map_only

from resilient.data.source import SourceContext
from resilient.data.torch_loader.replayed import FOLLOWED, Replayed
from resilient.errors import NotSupportedError, warn_not_exact
from resilient.objects import kinds
from resilient.serialization import JSON
from resilient.serialization.batches import pack, unpack
from resilient.serialization.json_values import NotEncodable, decode, encode
from resilient.serialization.schema import MalformedError, well_formed

_TENSOR = "torch tensor"


class FromState(Replayed):
    """A loader whose positions hold the ``state_dict`` of the user's objects."""

    follows_indices = False  # torchdata needs the sampler's own iterator for its state

    def seek(self, position: JSON, given: int) -> tuple[Iterator[Any], Any]:
        if position.get("state") is None:
            return super().seek(position, given)
        if position.get("finished"):
            return iter(()), None
        made, now = self.entries_of(position)[-1]["made"], self.state.lasting()
        self.state.restore(made)
        state = _decoded(position["state"])
        with self.getting_back():
            batches = self.from_state(state, made, given)
        if _is_iterable(self.loader):
            # Its iterator may yet have to read what load_state_dict left there.
            self.state.restore_random(now)
        else:
            self.state.restore(now)
        return batches, None

    def from_state(self, state: Any, made: JSON, given: int) -> Iterator[Any]:
        """An iterator that continues from a state, after ``given`` batches."""
        raise NotImplementedError


class Torchdata(FromState):
    """A ``StatefulDataLoader``."""

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

    def from_state(self, state: Any, made: JSON, given: int) -> Iterator[Any]:
        self.loader.load_state_dict(state)
        batches: Any = self.make(made)
        if batches._num_yielded != given:
            raise MalformedError("the state of another batch")
        self._of_workers, self._behind = None, False
        made_batches: Iterator[Any] = batches
        return made_batches


class _OfIterable(TypedDict):
    """The state of a dataset, and of its iterator if that has its own."""

    dataset: Any
    iterator: Any
    ended: bool


class IterableState(FromState):
    """A plain DataLoader without workers over a stateful iterable dataset."""

    def position(self, *, live: bool) -> JSON:
        position = super().position(live=live)
        if not live or self._batches is None:
            return position
        fetcher = self._batches._dataset_fetcher
        dataset, iterator = fetcher.dataset, fetcher.dataset_iter
        apart = iterator is not dataset and kinds.has_state_dict(type(iterator))
        state = {
            "dataset": dataset.state_dict(),
            "iterator": iterator.state_dict() if apart else None,
            "ended": fetcher.ended,
        }
        return {**position, "state": _encoded(state)}

    def from_state(self, state: Any, made: JSON, given: int) -> Iterator[Any]:
        state = well_formed(_OfIterable, state, "the state of an iterable dataset")
        self.loader.dataset.load_state_dict(state["dataset"])
        batches: Any = self.make(made)
        fetcher = batches._dataset_fetcher
        if state["iterator"] is not None:
            fetcher.dataset_iter.load_state_dict(state["iterator"])
        fetcher.ended = state["ended"]
        batches._num_yielded = given
        made_batches: Iterator[Any] = batches
        return made_batches


def can_tell(loader: Any) -> bool:
    """Whether the state of a ``StatefulDataLoader`` determines its order."""
    if _is_iterable(loader):
        # Otherwise it would replay, unverified.
        return kinds.has_state_dict(type(loader.dataset))
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
            "The state_dict() of a dataset or a DataLoader cannot be saved.",
            received=str(error),
            hint="Return plain values, lists, dicts, arrays and tensors, or pass "
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
