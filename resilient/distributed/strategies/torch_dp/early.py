"""Buckets sent while the backward pass still runs.

A hook on each parameter puts its gradient into its bucket as soon as it is there; full
buckets are sent, in their order. Whether that was right shows only when the optimizer
is given the gradients: they may have been changed, or another backward pass may have
added to them. What was sent too early is then sent again, on all ranks.
"""

from collections.abc import Sequence

import torch

from resilient.distributed.strategies.torch_dp.buckets import Buckets


class OverlappedAllReduce:
    """The hooks of one optimizer's parameters, between two of its steps.

    Attributes:
        sending: Whether full buckets are sent; otherwise it only watches.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], buckets: Buckets) -> None:
        self.sending = False
        self.parameters = list(parameters)
        self._buckets = buckets
        self._seen: dict[int, tuple[torch.Tensor, int]] = {}
        self._missing = list(buckets.sizes)
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._hook(place))
            for place, parameter in enumerate(self.parameters)
        ]

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def took(self, gradients: Sequence[torch.Tensor | None]) -> bool:
        """Put into the buckets what the hooks did not; say if all is right.

        Not so where a gradient is not what was sent for it.
        """
        right = True
        for place, gradient in enumerate(gradients):
            if self.sending and self._is_seen(place, gradient):
                continue
            if self.sending and self._buckets.bucket_of[place] < self._buckets.sent:
                right = False
            else:
                self._buckets.put(place, gradient)
        return right

    def is_plain(self, gradients: Sequence[torch.Tensor | None]) -> bool:
        """Whether each gradient came from one backward pass, and is as it came."""
        return all(
            gradient is None or self._is_seen(place, gradient)
            for place, gradient in enumerate(gradients)
        )

    def next_step(self) -> None:
        """Forget this step's gradients."""
        self._seen.clear()
        self._missing = list(self._buckets.sizes)

    def _is_seen(self, place: int, gradient: torch.Tensor | None) -> bool:
        tensor, version = self._seen.get(place, (None, -1))
        return gradient is not None and (
            gradient is tensor and gradient._version == version
        )

    def _hook(self, place: int) -> object:
        def arrived(parameter: torch.Tensor) -> None:
            gradient = parameter.grad
            if place in self._seen or gradient is None:
                return  # what it adds to is no longer as it was seen
            self._seen[place] = (gradient, gradient._version)
            if self.sending:
                with torch.no_grad():
                    self._fill(place, gradient)

        return arrived

    def _fill(self, place: int, gradient: torch.Tensor) -> None:
        buckets = self._buckets
        if gradient.layout != torch.strided:
            return  # the optimizer's step says what is wrong
        buckets.put(place, gradient)
        self._missing[buckets.bucket_of[place]] -= 1
        last = buckets.count - (buckets.notes is not None)  # notes: from the step
        while buckets.sent < last and not self._missing[buckets.sent]:
            buckets.send()
