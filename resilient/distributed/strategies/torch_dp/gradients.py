"""Gradients averaged over the ranks inside the step of Keras's optimizers.

``train_step`` stays as it is: the ``apply`` of each optimizer that hangs on the model
gets the averages in place of the gradients it was called with. ``apply_gradients``
calls it, gradient accumulation and loss scaling happen behind it: all ranks see the
same numbers, hence agree on whether they are finite.

A variable that has a gradient on some ranks only counts as zero on the others. With one
optimizer, buckets are sent while the backward pass runs (``early``), from its
third step on.

Refuses sparse gradients, variables that are overwritten with their gradient, and ranks
that apply gradients of different variables.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import keras
import torch
from torch import distributed

from resilient.distributed.strategies.torch_dp.agreement import RankAgreement
from resilient.distributed.strategies.torch_dp.averaging import Averaging, tensor_of
from resilient.distributed.strategies.torch_dp.outside import UnsyncedChanges


class AveragedGradients:
    """While entered, the model's optimizers average gradients over all ranks.

    Enter and leave it on all ranks. An optimizer that is hung on the model later is not
    seen; ``SynchronisedSteps`` notices.

    Attributes:
        applied: How many steps of optimizers were averaged.
        outside: Told of weights that changed otherwise.
        versions: Of each variable's tensor, by id: torch's count of the changes to it,
            as it was after the last averaged step.
    """

    def __init__(
        self, model: keras.Model, group: Any = None, timeout: timedelta | None = None
    ) -> None:
        """Prepare.

        Args:
            model: Whose optimizers are meant.
            group: Of processes, for the gradients; a new one where none is given, so
                that no other collective can get in between.
            timeout: Of new groups.
        """
        self._model, self._given, self._timeout = model, group, timeout
        self._inside = False  # an optimizer's step calls that of the one it wraps
        self._steps: list[Averaging] = []
        self.outside = UnsyncedChanges()
        self.applied = 0
        self.versions: dict[int, int] = {}

    def __enter__(self) -> "AveragedGradients":
        found = list(optimizers(self._model))
        self._group = self._given or distributed.new_group(timeout=self._timeout)
        self._agreement = RankAgreement(self._timeout)
        outer = [o for o in found if not any(o is i for i in _inner(found))]
        for number, optimizer in enumerate(found):
            averaging = Averaging(
                f"optimizer {number} ({type(optimizer).__name__})",
                *(self._group, self._agreement, self.outside),
                may_be_early=len(outer) == 1,
            )
            self._steps.append(averaging)
            # Not setattr: Keras would look into it for variables.
            vars(optimizer)["apply"] = self._apply(optimizer, averaging)
        self._optimizers = found
        return self

    def __exit__(self, *_: object) -> None:
        for optimizer in self._optimizers:
            vars(optimizer).pop("apply", None)
        for step in self._steps:
            step.close()
        self._steps.clear()
        self._agreement.close()
        if self._given is None:
            distributed.destroy_process_group(self._group)

    def _apply(self, optimizer: Any, averaging: Averaging) -> Callable[..., Any]:
        plain = optimizer.apply

        def apply(grads: Any, trainable_variables: Any = None) -> Any:
            grads = list(grads)
            if self._inside or not grads:
                return plain(grads, trainable_variables)
            variables = trainable_variables
            if variables is None:
                variables = optimizer._trainable_variables
            variables = list(variables)
            averages = averaging(grads, variables)
            self._inside = True
            try:
                result = plain(averages, trainable_variables)
            finally:
                self._inside = False
            self.applied += 1
            changed = {id(v): v for v in (*variables, *optimizer._trainable_variables)}
            for variable in changed.values():
                tensor = tensor_of(variable)
                self.versions[id(tensor)] = tensor._version
            return result

        # Collectives are no part of a graph that torch compiles.
        eager: Callable[..., Any] = torch.compiler.disable(apply)
        return eager


def optimizers(model: keras.Model) -> Iterator[Any]:
    """Keras's optimizers that hang on a model or its layers, each once."""
    seen: set[int] = set()
    for layer in model._flatten_layers():
        for value in vars(layer).values():
            for optimizer in _held(value):
                if id(optimizer) not in seen:
                    seen.add(id(optimizer))
                    yield optimizer


def _held(value: Any) -> Iterator[Any]:
    if isinstance(value, keras.optimizers.Optimizer):
        yield value
        yield from _held(getattr(value, "inner_optimizer", None))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _held(item)
    elif isinstance(value, dict):
        yield from _held(list(value.values()))


def _inner(found: Sequence[Any]) -> list[Any]:
    return [getattr(optimizer, "inner_optimizer", None) for optimizer in found]
