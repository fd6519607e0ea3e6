"""Notices a training step that changed weights without averaged gradients.

A custom ``train_step`` may hold an optimizer of torch, or one that was set after
training began: each rank would then go its own way. Weights that changed outside an
averaged step are compared over the ranks; what was computed alike everywhere, such as
the moving average of another network, is right.

Where the step had averages, they are compared at the next ones (``UnsyncedChanges``);
where it had none, no rank had, and all are here to compare them now.
"""

import keras
import torch
import xxhash

from resilient.distributed.strategies.torch_dp.agreement import RankAgreement
from resilient.distributed.strategies.torch_dp.averaging import tensor_of
from resilient.distributed.strategies.torch_dp.gradients import AveragedGradients
from resilient.distributed.strategies.torch_dp.outside import not_alike


class SynchronisedSteps:
    """Between ``begin`` and ``end``, trainable weights change on all ranks alike."""

    def __init__(
        self, model: keras.Model, averaged: AveragedGradients, agreement: RankAgreement
    ) -> None:
        self._model, self._averaged, self._agreement = model, averaged, agreement
        self._weights: list[tuple[str, torch.Tensor]] = []
        self._before: list[int] = []
        self._applied = 0

    def renew(self) -> None:
        """Look at the model's weights again: at the beginning of each epoch.

        Every step would be too often, it takes a while.
        """
        weights = self._model.trainable_variables
        self._weights = [(v.path, tensor_of(v)) for v in weights]

    def begin(self) -> None:
        """Before a training step; torch counts the changes of each tensor."""
        if not self._weights:  # a model that was built in its first step
            self.renew()
        self._before = [tensor._version for _, tensor in self._weights]
        self._applied = self._averaged.applied

    def end(self) -> None:
        """After a training step.

        Raises:
            NotSupportedError: Weights changed, and not on all ranks alike.
        """
        averaged = self._averaged.versions
        changed = {
            path: _checksum(tensor)
            for (path, tensor), before in zip(self._weights, self._before, strict=True)
            if tensor._version not in (before, averaged.get(id(tensor)))
        }
        if self._averaged.applied != self._applied:
            self._averaged.outside.note(changed)
            return
        everyones = self._agreement.gathered(repr(sorted(changed.items())))
        if len(set(everyones)) > 1:
            raise not_alike(sorted(changed))


def _checksum(tensor: torch.Tensor) -> str:
    plain = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
    return xxhash.xxh3_128_hexdigest(plain.numpy())
