"""Arrays on torch: redraws Keras's own batch sampler, skipping only indices.

Keras builds a ``DataLoader`` without workers over a batch sampler that draws the order
with its first batch. We wrap that batch sampler: we save the random state that it draws
from (before Keras 3.16, that of torch's global generator, see
``keras_internals.keras_3_12``), let it draw again in a resumed epoch, and skip the
indices of batches that were already trained.

In several processes, each rank reads only its own rows. All ranks draw an order from
the state of rank 0's generator, and each advances its own generator as a single process
would: their states may differ, and each rank keeps its own.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import keras
import torch

from resilient.data.arrays.sliced import SlicedArrays
from resilient.distributed.strategies.torch import require_divisible, rows
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


class RankArrays(TorchArrays):
    """A rank's part of the array input; positions count batches of the whole job."""

    gives_own_rows = True

    def __init__(
        self,
        *args: Any,
        rank: int,
        world: int,
        share: Callable[[str], str],
        **kwargs: Any,
    ) -> None:
        """Create it like Keras's adapter.

        Args:
            *args: Arguments of Keras's adapter.
            rank: The number of this process.
            world: How many there are.
            share: Returns the text that rank 0 called it with; all ranks call it.
            **kwargs: Keyword arguments of Keras's adapter.

        Raises:
            ValueError: A batch cannot be divided evenly.
        """
        super().__init__(*args, **kwargs)
        require_divisible(self.samples, int(self.batch_size), world)
        self._rank, self._world, self._share = rank, world, share

    def one_order(self, batches: Any) -> Any:
        return SampledBatches(batches, self._drawn_alike)

    def _drawn_alike(self, batches: Any) -> Iterator[list[int]]:
        """This rank's part of Keras's batches, in the order that rank 0 draws."""
        common, own = iter(batches), iter(batches)
        # "batch": each batch draws when its turn comes; otherwise the first draws
        # everything.
        draws = len(batches) if self.shuffled == "batch" else bool(self.shuffled)
        for i in range(len(batches)):
            if i < draws:
                with self._from_random_state(self._share(self._random_state())):
                    batch = next(common)
                next(own)
            else:
                batch = next(common)
            yield batch[rows(len(batch), self._rank, self._world)]
