"""PyTorch: ranks of ``torch.distributed``, made data-parallel here.

Keras's torch backend trains in one process. Here all ranks begin with rank 0's weights,
each trains its rows of the same batches, and the optimizers average the gradients;
``train_step`` stays as it is.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

import keras
import torch.distributed as dist

from resilient import state
from resilient.backends import dcp_format
from resilient.distributed.group import Group
from resilient.parallel import torch_start
from resilient.parallel.engine import Engine
from resilient.parallel.same_batches import compared
from resilient.parallel.torch_agreement import Agreement
from resilient.parallel.torch_arrays import RankArrays
from resilient.parallel.torch_gradients import AveragedGradients
from resilient.parallel.torch_losses import refuse_sums, warn_of_masks
from resilient.parallel.torch_metrics import MergedLogs
from resilient.parallel.torch_slices import is_own_part, sliced
from resilient.parallel.torch_steps import SynchronisedSteps

_SEEDS = "seed_generator_state"  # each rank draws its own masks
# Of collectives. Nobody waits so long for a process that is lost: that is seen before.
_TIMEOUT = timedelta(minutes=30)


class Ranks(Engine):
    """The ranks of the default process group."""

    divides_arrays = True

    def __init__(self) -> None:
        self.index = dist.get_rank()
        self.count = dist.get_world_size()
        self.host = os.environ.get("MASTER_ADDR", "localhost")
        dcp_format.make_group()
        self._agreement = Agreement(_TIMEOUT)

    def broadcast(self, text: str) -> str:
        return self._agreement.gathered(text)[0]

    @contextlib.contextmanager
    def training(self, model: keras.Model) -> Iterator[None]:
        torch_start.refuse_sharded(model)
        refuse_sums(model)
        with (
            AveragedGradients(model, timeout=_TIMEOUT) as averaged,
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
            for leaf in state.leaves(model)
            if not leaf.path.endswith(_SEEDS)
        ]
        torch_start.broadcast_variables(shared)
        self._steps.renew()

    def arrays(self, group: Group) -> Callable[..., Any] | None:
        share = partial(group.tell, "order")
        return partial(RankArrays, rank=self.index, world=self.count, share=share)

    def rows(
        self, batches: Iterable[Any], data: Any, name: str, group: Group
    ) -> Iterable[Any]:
        if is_own_part(data, self.index, self.count):
            return batches
        return sliced(compared(batches, name, group), self.index, self.count)

    def draws_all(self, data: Any) -> bool:
        return not is_own_part(data, self.index, self.count)

    def before_step(self) -> None:
        self._steps.begin()

    def after_step(self) -> None:
        self._steps.end()


def engine_under(strategy: None) -> Ranks | None:
    """The ranks that train together, if there are several; starts what is needed."""
    return Ranks() if torch_start.initialize(_TIMEOUT) else None
