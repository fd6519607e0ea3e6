"""Arrays on torch: Keras's own batch sampler, drawn again, skipping indices only.

Keras builds a ``DataLoader`` without workers over a batch sampler that draws the order
when its first batch is asked for. We stand in front of that batch sampler: we keep what
it draws from (before Keras 3.16 the state of torch's global generator, see
``keras_internals.keras_3_12``), let it draw again in a resumed epoch, and skip the
indices of the batches trained before.
"""

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import keras
import torch

from resilient.data.arrays.jax import SlicedArrays
from resilient.serialization import rng


class TorchArrays(SlicedArrays):
    """Array input of the torch trainer."""

    _random_state = staticmethod(partial(rng.state, torch.default_generator))
    _from_random_state = staticmethod(
        partial(rng.drawing_from, torch.default_generator)
    )

    def _orders(self) -> str:
        spread = isinstance(
            keras.distribution.distribution(), keras.distribution.ModelParallel
        )
        # Of DTensors: Keras slices batches by itself, in an order of NumPy's.
        return super()._orders() + (", by NumPy" if spread else "")

    def get_torch_dataloader(self) -> Any:
        loader = super().get_torch_dataloader()
        return torch.utils.data.DataLoader(
            loader.dataset,
            batch_sampler=_SeekableBatches(self.one_order(loader.batch_sampler), self),
            collate_fn=loader.collate_fn,
        )

    def one_order(self, batches: Any) -> Any:
        """Keras's batch sampler; with several processes, what they draw alike."""
        return batches

    def draw(self, batches: Any) -> Iterator[list[int]]:
        """The indices of each batch, from the position on.

        Runs when the first batch is asked for, where Keras's own sampler draws too.
        """
        start = self._take_start()
        first = start.drawn
        self._order = start.source["order"] if first else self._next_order()
        indices = iter(batches)
        if first:
            with self._drawing_again(self._order):
                next(itertools.islice(indices, first, first), None)
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
