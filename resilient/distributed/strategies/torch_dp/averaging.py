"""The way of one optimizer's gradients to their averages over the ranks."""

from collections.abc import Sequence
from typing import Any

import torch

from resilient.distributed.strategies.torch_dp.agreement import (
    RankAgreement,
    are_equal,
    mark,
    notes_for,
)
from resilient.distributed.strategies.torch_dp.buckets import Buckets
from resilient.distributed.strategies.torch_dp.early import OverlappedAllReduce
from resilient.distributed.strategies.torch_dp.outside import UnsyncedChanges
from resilient.errors import NotSupportedError

Gradients = Sequence[torch.Tensor | None]
_NOTES = len(notes_for([0, 0, 0, 0]))


class Averaging:
    """Averages what one optimizer is given, step by step."""

    def __init__(
        self,
        name: str,
        group: Any,
        agreement: RankAgreement,
        outside: UnsyncedChanges,
        *,
        may_be_early: bool,
    ) -> None:
        """Prepare.

        Args:
            name: Of the optimizer, the same on all ranks.
            group: Of processes, for the gradients.
            agreement: For what ranks have to tell each other at each step.
            outside: What changed since the step before.
            may_be_early: Whether buckets may be sent before the step, which needs that
                no other optimizer uses the same gradients.
        """
        self._name, self._group, self._agreement = name, group, agreement
        self._outside, self._may_be_early = outside, may_be_early
        self._tensors: list[torch.Tensor] = []
        self._mark = 0
        self._told_before: tuple[int, ...] = ()
        self._notes = torch.empty(0)
        self._buckets: Buckets | None = None
        self._early: OverlappedAllReduce | None = None

    def close(self) -> None:
        if self._early is not None:
            self._early.remove()
        self._early = self._buckets = None
        self._tensors = []

    def __call__(
        self, gradients: Gradients, variables: Sequence[Any]
    ) -> list[torch.Tensor | None]:
        """The averages; None where no rank has a gradient.

        Raises:
            NotSupportedError: Of a gradient that cannot be averaged, or where ranks
                are not at the same step.
        """
        tensors = [tensor_of(variable) for variable in variables]
        _require_alike(gradients, tensors, variables)
        with torch.no_grad():
            if not _same(tensors, self._tensors):
                return self._with_new_buckets(gradients, tensors)
            if self._early is not None and self._early.sending:
                return self._sent_early(self._early, gradients)
            return self._sent_now(gradients)

    def _with_new_buckets(
        self, gradients: Gradients, tensors: list[torch.Tensor]
    ) -> list[torch.Tensor | None]:
        layout = [(tuple(t.shape), str(t.dtype)) for t in tensors]
        self._mark = mark((self._name, layout))
        if self._early is not None and self._early.sending:
            self._finish(gradients, good=False)  # sent for the variables before
        self.close()
        here = self._mark, self._outside.mark
        self._judged(self._agreement.compare(*here), gradients)
        self._buckets = Buckets(tensors, self._group, _NOTES)
        self._tensors = tensors
        if self._may_be_early and all(t.requires_grad and t.is_leaf for t in tensors):
            self._early = OverlappedAllReduce(tensors, self._buckets)
        return self._sent_now(gradients)

    def _sent_now(self, gradients: Gradients) -> list[torch.Tensor | None]:
        buckets = self._known_buckets()
        plain = self._early is not None and self._early.is_plain(gradients)
        same = self._agreement.compare(*self._told(gradients, good=plain))
        present, good = self._judged(same, gradients)
        for place, gradient in enumerate(gradients):
            buckets.put(place, gradient)
        buckets.finish()
        if self._early is not None:
            self._early.sending = plain and good
            self._early.next_step()
        return self._averages(present)

    def _sent_early(
        self, early: OverlappedAllReduce, gradients: Gradients
    ) -> list[torch.Tensor | None]:
        right = early.took(gradients)
        buckets = self._known_buckets()
        present, good = self._judged(self._finish(gradients, good=right), gradients)
        early.next_step()
        if not (
            right and good
        ):  # on some rank gradients were changed after they were sent
            early.remove()
            self._early = None
            for place, gradient in enumerate(gradients):
                buckets.put(place, gradient)
            buckets.finish()
        return self._averages(present)

    def _finish(self, gradients: Gradients, *, good: bool) -> list[bool]:
        """Wait for all buckets; which of what ranks told each other is the same."""
        buckets, told = self._known_buckets(), self._told(gradients, good=good)
        if buckets.notes is None:
            buckets.send_all()
            same = self._agreement.compare(*told)
            buckets.finish()
            return same
        if told != self._told_before:  # mostly it is what was told at the last step
            self._notes = buckets.notes.new_tensor(notes_for(told))
            self._told_before = told
        buckets.notes.copy_(self._notes)
        buckets.finish()
        if torch.equal(buckets.notes, buckets.world * self._notes):
            return [True] * len(told)
        return are_equal(buckets.notes.tolist(), buckets.world)

    def _told(self, gradients: Gradients, *, good: bool) -> tuple[int, ...]:
        """What this rank tells.

        Where it is, what it changed before, what is missing, and whether it is good.
        """
        missing = [place for place, one in enumerate(gradients) if one is None]
        absent = mark(missing) if missing else 0
        return self._mark, self._outside.mark, absent, int(good)

    def _judged(
        self, same: Sequence[bool], gradients: Gradients
    ) -> tuple[Sequence[bool], bool]:
        """Which variables have a gradient somewhere; and if all say the same of good.

        Raises:
            NotSupportedError: The ranks are not at the same step, or do not have the
                same weights.
        """
        here = [gradient is not None for gradient in gradients]
        alike, same_outside, same_present, same_good = (*same, True, True, True)[:4]
        if not alike:
            raise NotSupportedError(
                "The ranks are not at the same step: they apply gradients of "
                "different variables or optimizers.",
                received=f"on this rank {len(gradients)} gradients for {self._name}",
                hint="Let every rank take the same steps on the same model.",
            )
        self._outside.compared(same=same_outside)
        present = here if same_present else self._agreement.any_rank(here)
        return present, same_good

    def _averages(self, present: Sequence[bool]) -> list[torch.Tensor | None]:
        averages = self._known_buckets().averages
        return [
            average if is_present else None
            for average, is_present in zip(averages, present, strict=True)
        ]

    def _known_buckets(self) -> Buckets:
        assert self._buckets is not None
        return self._buckets


def tensor_of(variable: Any) -> torch.Tensor:
    """The tensor of a Keras variable itself, which `value` may have cast."""
    tensor: torch.Tensor = getattr(variable, "_value", variable)
    return tensor


def _same(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    return len(some) == len(others) and all(
        one is other for one, other in zip(some, others, strict=True)
    )


def _require_alike(
    gradients: Gradients, tensors: Sequence[torch.Tensor], variables: Sequence[Any]
) -> None:
    """Raise where an average would not be what one process computes."""
    for gradient, tensor, variable in zip(gradients, tensors, variables, strict=True):
        wrong = ""
        if getattr(variable, "overwrite_with_gradient", False):
            wrong = "a value that overwrites the variable, in place of a gradient"
        elif gradient is None:
            continue
        elif gradient.layout != torch.strided:
            wrong = f"a gradient of layout {gradient.layout}"
        elif (gradient.shape, gradient.dtype) != (tensor.shape, tensor.dtype):
            wrong = f"a gradient of {tuple(gradient.shape)} {gradient.dtype}"
        if wrong:
            path = getattr(variable, "path", "a tensor")
            raise NotSupportedError(
                "This gradient cannot be averaged over several processes.",
                received=f"{wrong}, for {path} ({tuple(tensor.shape)} {tensor.dtype})",
                hint="Use dense gradients of the variable's dtype (for an embedding of "
                "torch, sparse=False), or train in one process.",
            )
