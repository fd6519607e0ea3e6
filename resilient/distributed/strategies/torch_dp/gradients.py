"""Averages gradients over the ranks inside the step of Keras's optimizers.

``train_step`` is unchanged: ``apply`` of each optimizer attached to the model averages
the gradients that it gets. ``apply_gradients`` calls it; gradient accumulation and loss
scaling come after it, so all ranks see the same numbers and agree on whether they are
finite.

Other ways to change weights (a torch optimizer, one set after ``fit`` began, a callback
on one rank) are not seen here: each save compares the ranks' weights.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import torch

from resilient.distributed.strategies.torch_dp.averages import Averages


@contextlib.contextmanager
def averaged_gradients(model: keras.Model, host: Any) -> Iterator[None]:
    """While entered, the model's optimizers average gradients over all ranks.

    Args:
        model: The model whose optimizers to use.
        host: A group of all ranks that communicates through host memory.
    """
    found = list(_optimizers(model))
    for number, optimizer in enumerate(found):
        name = f"optimizer {number} ({type(optimizer).__name__})"
        # Not setattr: Keras would look into it for variables.
        vars(optimizer)["apply"] = _averaging(optimizer, Averages(name, host))
    try:
        yield
    finally:
        for optimizer in found:
            vars(optimizer).pop("apply", None)


def _averaging(optimizer: Any, averages: Averages) -> Callable[..., Any]:
    plain = optimizer.apply

    def apply(grads: Any, trainable_variables: Any = None) -> Any:
        variables = None if trainable_variables is None else list(trainable_variables)
        known = optimizer._trainable_variables if variables is None else variables
        with torch.no_grad():
            averaged = averages(list(grads), known)
        return plain(averaged, variables)

    # Collectives are not part of a graph that torch compiles.
    eager: Callable[..., Any] = torch.compiler.disable(apply)
    return eager


def _optimizers(model: keras.Model) -> Iterator[Any]:
    """The Keras optimizers attached to a model or its layers, each once.

    Not those inside another optimizer, which calls them with averages.
    """
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
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _held(item)
    elif isinstance(value, dict):
        yield from _held(list(value.values()))
