"""Arrays on torch: Keras's own batch sampler, drawn again, skipping indices only.

Keras builds a ``DataLoader`` without workers over a batch sampler that draws from
torch's global generator when its first batch is asked for. We stand in front of that
batch sampler: we keep the generator's state as it was before the draw, repeat the draw
from it in a resumed epoch, and skip the indices of the batches trained before.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import torch

from resilient.backends.torch import decode_state, encode_state
from resilient.data import JSON
from resilient.data.arrays import SeekableArrays


class TorchArrays(SeekableArrays):
    """Array input of the torch trainer."""

    _order: str | None = None  # random state that drew the permutation in use

    def position(self, drawn: int, *, held: bool) -> JSON:
        return {"drawn": drawn, "order": self._order} if drawn else {"drawn": 0}

    def get_torch_dataloader(self) -> Any:
        loader = super().get_torch_dataloader()
        return torch.utils.data.DataLoader(
            loader.dataset,
            batch_sampler=_SeekableBatches(loader.batch_sampler, self),
            collate_fn=loader.collate_fn,
        )

    def draw(self, batches: Any) -> Iterator[list[int]]:
        """The indices of each batch, from the position on.

        Runs when the first batch is asked for, where Keras's own sampler draws too.
        """
        start = self._take_start()
        first, order = start.get("drawn", 0), start.get("order")
        if self._shuffle == "batch":  # each batch draws on its own, when its turn comes
            plain = itertools.islice(batches.sampler, first, None)
            for batch in plain:
                yield [batch[i] for i in torch.randperm(len(batch))]
            return
        now = torch.get_rng_state()
        self._order = order or encode_state(now)
        if order is not None:
            torch.set_rng_state(decode_state(order))
        indices = itertools.islice(iter(batches), first, None)
        head = next(indices, None)  # here the permutation is drawn
        if order is not None:
            torch.set_rng_state(now)
        if head is not None:
            yield head
            yield from indices


class _SeekableBatches(torch.utils.data.Sampler):  # type: ignore[misc]
    """A batch sampler that starts where the adapter says."""

    def __init__(self, batches: Any, adapter: TorchArrays) -> None:
        self._batches = batches
        self._adapter = adapter

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[list[int]]:
        return self._adapter.draw(self._batches)
