"""Ranks whose gradients are averaged here, by the optimizers of the model."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import keras

from resilient.distributed.group import Group
from resilient.distributed.strategies.torch_dp.agreement import RankAgreement
from resilient.distributed.strategies.torch_dp.gradients import AveragedGradients
from resilient.distributed.strategies.torch_dp.losses import refuse_sums, warn_of_masks
from resilient.distributed.strategies.torch_dp.metrics import MergedLogs
from resilient.distributed.strategies.torch_dp.start import (
    broadcast_variables,
    refuse_sharded,
)
from resilient.distributed.strategies.torch_dp.steps import SynchronisedSteps
from resilient.distributed.strategies.torch_ranks import TIMEOUT, DividingRanks
from resilient.state import variables

_SEEDS = "seed_generator_state"  # each rank draws its own masks


class AveragingRanks(DividingRanks):
    """Ranks that train their rows of the same batches; ``train_step`` stays as is."""

    def __init__(self) -> None:
        super().__init__()
        self._agreement = RankAgreement(TIMEOUT)

    @contextlib.contextmanager
    def training(self, model: keras.Model) -> Iterator[None]:
        refuse_sharded(model)
        refuse_sums(model)
        with (
            AveragedGradients(model, timeout=TIMEOUT) as averaged,
            MergedLogs(model, self._agreement),
        ):
            self._steps = SynchronisedSteps(model, averaged, self._agreement)
            yield

    def begin(
        self, model: keras.Model, group: Group, settings: Mapping[str, Any]
    ) -> None:
        super().begin(model, group, settings)
        warn_of_masks(model)
        shared = [
            leaf.target
            for leaf in variables.leaves(model)
            if not leaf.path.endswith(_SEEDS)
        ]
        broadcast_variables(shared)
        self._steps.renew()

    def before_step(self) -> None:
        self._steps.begin()

    def after_step(self) -> None:
        self._steps.end()
