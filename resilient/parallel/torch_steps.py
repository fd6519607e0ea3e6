"""Notices a training step that changed weights without averaged gradients.

A custom ``train_step`` may hold an optimizer of torch, or one that was set after
training began: each rank would then go its own way. Weights that changed outside an
averaged step are compared over the ranks; what was computed alike everywhere, such as
the moving average of another network, is right.
"""

import keras
import torch
import xxhash

from resilient.errors import NotSupportedError, describe
from resilient.parallel.torch_agreement import Agreement
from resilient.parallel.torch_averaging import tensor_of
from resilient.parallel.torch_gradients import AveragedGradients


class SynchronisedSteps:
    """Between ``begin`` and ``end``, trainable weights change on all ranks alike."""

    def __init__(
        self, model: keras.Model, averaged: AveragedGradients, agreement: Agreement
    ) -> None:
        self._model, self._averaged, self._agreement = model, averaged, agreement
        self._weights: list[tuple[str, torch.Tensor]] = []
        self._before: list[int] = []

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

    def end(self) -> None:
        """After a training step.

        Raises:
            NotSupportedError: Weights changed, and not on all ranks alike.
        """
        averaged = self._averaged.versions
        changed = [
            (path, tensor)
            for (path, tensor), before in zip(self._weights, self._before, strict=True)
            if tensor._version not in (before, averaged.get(id(tensor)))
        ]
        if not changed:
            return
        texts = [f"{path} {_checksum(tensor)}" for path, tensor in changed]
        everyones = self._agreement.gathered("\n".join(texts))
        if len(set(everyones)) == 1:
            return
        theirs = zip(*(text.split("\n") for text in everyones), strict=False)
        unequal = [
            path
            for (path, _), each in zip(changed, theirs, strict=False)
            if len({text.rpartition(" ")[2] for text in each}) > 1
        ]
        raise NotSupportedError(
            describe(
                "A training step changed weights, and not on all processes alike: "
                "their gradients were not averaged.",
                ", ".join(unequal[:3] or ["other weights on each process"])
                + (f" and {len(unequal) - 3} more" if unequal[3:] else ""),
                "Use Keras optimizers that are attributes of the model when fit "
                "begins, and change weights through their apply.",
            )
        )


def _checksum(tensor: torch.Tensor) -> str:
    plain = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
    return xxhash.xxh3_128_hexdigest(plain.numpy())
