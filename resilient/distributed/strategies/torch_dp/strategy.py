"""Ranks whose gradients the model's optimizers average."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import keras
from torch import distributed

from resilient.distributed.group import Group
from resilient.distributed.strategies.torch import TIMEOUT, DividingRanks
from resilient.distributed.strategies.torch_dp.gradients import averaged_gradients
from resilient.distributed.strategies.torch_dp.losses import refuse_sums, warn_of_masks
from resilient.distributed.strategies.torch_dp.metrics import MergedLogs
from resilient.distributed.strategies.torch_dp.start import (
    broadcast_variables,
    refuse_sharded,
)
from resilient.state import variables

_SEEDS = "seed_generator_state"  # each rank draws its own masks


class AveragingRanks(DividingRanks):
    """Ranks that train their rows of the same batches; ``train_step`` is unchanged."""

    @contextlib.contextmanager
    def training(self, model: keras.Model) -> Iterator[None]:
        refuse_sharded(model)
        refuse_sums(model)
        # Its own group: the one for checkpoints is busy while they are written.
        host = distributed.new_group(backend="gloo", timeout=TIMEOUT)
        try:
            with averaged_gradients(model, host), MergedLogs(model, host):
                yield
        finally:
            distributed.destroy_process_group(host)

    def begin(
        self, model: keras.Model, group: Group, settings: Mapping[str, Any]
    ) -> None:
        super().begin(model, group, settings)
        warn_of_masks(model)
        leaves = sorted(variables.leaves(model), key=lambda leaf: leaf.name)
        broadcast_variables(
            leaf.target for leaf in leaves if not leaf.path.endswith(_SEEDS)
        )
