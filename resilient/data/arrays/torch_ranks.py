"""Arrays on torch in several processes: each rank reads only its own rows.

Keras's sampler draws the order of an epoch from torch's global generator. All ranks
draw it from the state of rank 0's generator, and each advances its own generator as a
single process would: their states may differ, and each rank keeps its own.
"""

from collections.abc import Callable, Iterator
from typing import Any

from resilient.data.arrays.torch import SampledBatches, TorchArrays
from resilient.distributed.strategies.torch import require_divisible, rows


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
