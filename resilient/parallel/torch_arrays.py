"""Arrays on torch, in several processes: only the rank's own rows are read.

Keras's sampler draws the order of an epoch from torch's global generator. All ranks
draw it from the state that rank 0's generator has, and each advances its own as one
process would: their states may differ, and stay each rank's own.
"""

from collections.abc import Callable, Sequence
from typing import Any

from resilient.data.arrays_torch import TorchArrays
from resilient.parallel.torch_slices import require_divisible, rows


class RankArrays(TorchArrays):
    """A rank's part of array input; positions count batches of the whole job."""

    gives_own_rows = True

    def __init__(
        self,
        *args: Any,
        rank: int,
        world: int,
        share: Callable[[str], str],
        **kwargs: Any,
    ) -> None:
        """As Keras's adapter.

        Args:
            *args: Of Keras's adapter.
            rank: Which of the processes this is.
            world: How many there are.
            share: Returns the text that rank 0 called it with; all call it.
            **kwargs: Of Keras's adapter.

        Raises:
            ValueError: A batch cannot be divided evenly.
        """
        super().__init__(*args, **kwargs)
        require_divisible(int(self._num_samples), int(self._batch_size), world)
        self._rank, self._world, self.share = rank, world, share

    def own(self, batch: Sequence[int]) -> list[int]:
        return list(batch[rows(len(batch), self._rank, self._world)])
