"""PyTorch: ranks of ``torch.distributed``.

Since 3.16 Keras trains on them by itself, with ``DistributedDataParallel`` or DTensors.
Older versions train in one process, and ``torch_dp`` makes the ranks data-parallel.
"""

from typing import Any

import keras

from resilient import keras_internals
from resilient.backends.base import Backend
from resilient.distributed.strategies import torch_ranks
from resilient.distributed.strategies.keras_processes import (
    KerasProcesses,
    models_of_their_own,
)
from resilient.distributed.strategies.torch_ranks import DividingRanks, Ranks
from resilient.state.build import take_a_step


class KerasRanks(KerasProcesses, Ranks):
    """Ranks that Keras's own ``fit`` trains on."""

    def warm_up(self, model: keras.Model, iterator: Any, backend: Backend) -> None:
        """Run the step after which ``DistributedDataParallel`` rebuilds its buckets.

        It orders them as gradients arrive. The place of a gradient in its bucket
        decides the order in which more than two ranks are summed.
        """
        parallel = keras.distribution.distribution()
        spread = isinstance(parallel, keras.distribution.ModelParallel)  # no buckets
        if self.count > 2 and not spread:
            take_a_step(model, iterator, backend)


def parallel_strategy(strategy: None, *, by_hand: bool) -> Ranks | None:
    """The ranks that train together, if there are several; initializes the group."""
    if by_hand:
        return DividingRanks() if torch_ranks.initialize() else None
    if not keras_internals.generation.trains_on_ranks:
        from resilient.distributed.strategies.torch_dp.strategy import AveragingRanks

        return AveragingRanks() if torch_ranks.initialize() else None
    if torch_ranks.have_met():
        return KerasRanks()
    if torch_ranks.started() > 1:
        raise models_of_their_own(
            f"WORLD_SIZE={torch_ranks.started()}, and torch.distributed is not "
            "initialized"
        )
    return None
