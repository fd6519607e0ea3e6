"""Arrays on torch: redraws Keras's own batch sampler, skipping only indices.

Keras builds a ``DataLoader`` without workers over a batch sampler that draws the order
with its first batch. We wrap that batch sampler: we save the random state that it draws
from (before Keras 3.16, that of torch's global generator, see
``keras_internals.keras_3_12``), let it draw again in a resumed epoch, and skip the
indices of batches that were already trained.
"""

from collections.abc import Callable, Iterator
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
        # For DTensors, Keras slices batches itself, in an order drawn by NumPy.
        return super()._orders() + (", by NumPy" if spread else "")

    def get_torch_dataloader(self) -> Any:
        loader = super().get_torch_dataloader()
        return torch.utils.data.DataLoader(
            loader.dataset,
            batch_sampler=SampledBatches(
                self.one_order(loader.batch_sampler), self._draw
            ),
            collate_fn=loader.collate_fn,
        )

    def one_order(self, batches: Any) -> Any:
        """Keras's batch sampler; several processes draw the same."""
        return batches

    def _draw(self, batches: Any) -> Iterator[list[int]]:
        """The indices of each batch, starting at the position."""
        return self._rows(iter(batches))


class SampledBatches(torch.utils.data.Sampler):  # type: ignore[misc]
    """A batch sampler whose indices another function draws from it.

    Args:
        draw: Yields the indices of each batch.
    """

    def __init__(
        self, batches: Any, draw: Callable[[Any], Iterator[list[int]]]
    ) -> None:
        self._batches = batches
        self._draw = draw

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[list[int]]:
        return self._draw(self._batches)
